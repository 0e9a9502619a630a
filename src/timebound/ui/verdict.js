// An answer that was kept: a link to it, and whether it was right.

import { copy, h } from "./dom.js";
import { ask } from "./key.js";
import { say } from "./words.js";

const baseOf = (model) => model.name.split("@")[0];
const part = encodeURIComponent;

/** The address at which the server shows an answer again, while it keeps it. */
const linkTo = (model, key) => `${location.origin}/?result=${part(key)}#${part(model.name)}`;

/** The key in the page's own address, if it is one of this model's answers. */
export function linkedKey(model) {
  const wanted = decodeURIComponent(location.hash.slice(1));
  return !wanted || wanted === model.name ? new URLSearchParams(location.search).get("result") : null;
}

/** The kept answer as a response; rejects where the server is gone. */
export const kept = (model, key) => ask(`/v1/results/${part(baseOf(model))}/${part(key)}`);

/** A row below an answer: a link to it (not to a fallback, which is not kept), and the verdict where it is taken. */
export function keptView(model, key, quality) {
  const link = quality && quality !== "fallback" ? linkButton(linkTo(model, key)) : null;
  const verdict = model.takes_feedback ? verdictView(model, key) : null;
  return link || verdict ? h("div", { class: "kept" }, verdict, link) : null;
}

function linkButton(address) {
  const button = h("button", { type: "button" }, say("copy_link"));
  button.addEventListener("click", async () => {
    try {
      await copy(address);
      button.textContent = say("link_copied");
    } catch {
      button.textContent = say("copy_failed");
    }
    setTimeout(() => (button.textContent = say("copy_link")), 1500);
  });
  button.dataset.link = address;
  return button;
}

function verdictView(model, key) {
  const note = h("span", { class: "quiet", role: "status" });
  const right = h("input", { type: "text", maxLength: 200, "aria-label": say("what_right"), placeholder: say("what_right") });
  const better = h("form", { hidden: true }, right, " ", h("button", { type: "submit" }, say("say_so")));
  const judged = async (verdict, label = "") => {
    try {
      const response = await ask(`/v1/feedback/${part(baseOf(model))}/${part(key)}`, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ verdict, ...(label ? { label } : {}) }),
      });
      const noted = label ? "noted_label" : "noted_as";
      note.textContent = response.ok ? say(noted, { verdict: say(verdict), label }) : say("not_noted_why", { why: response.status });
    } catch (error) {
      note.textContent = say("not_noted_why", { why: error.message });
    }
  };
  const judge = (verdict) => {
    for (const [name, button] of Object.entries(buttons)) button.setAttribute("aria-pressed", String(name === verdict));
    better.hidden = verdict !== "wrong";
    judged(verdict);
  };
  const button = (name, title) => h("button", { type: "button", "aria-pressed": "false", onclick: () => judge(name) }, title);
  const buttons = { right: button("right", say("Right")), wrong: button("wrong", say("Wrong")) };
  better.addEventListener("submit", (event) => {
    event.preventDefault();
    judged("wrong", right.value.trim());
  });
  return h("div", { class: "verdict", role: "group", "aria-label": say("is_right") }, Object.values(buttons), note, better);
}
