// The API key of this tab, where the server wants one: kept until the tab is closed, sent with every call.

import { h } from "./dom.js";
import { say } from "./words.js";

const NAME = "timebound-key";

/** Whether a key was given. */
export const hasKey = () => Boolean(sessionStorage.getItem(NAME));

/** `fetch` with the key, if there is one. */
export function ask(url, options = {}) {
  const key = sessionStorage.getItem(NAME);
  return fetch(url, { ...options, headers: { ...options.headers, ...(key ? { "X-API-Key": key } : {}) } });
}

/** A form that asks for the key; `done()` is called when one was given. */
export function keyForm(done) {
  const input = h("input", { type: "password", autocomplete: "off", required: true, "aria-label": "API key" });
  const wrong = hasKey() ? say("wrong_key") : "";
  const form = h(
    "form",
    { class: "notice", id: "key" },
    h("label", {}, wrong + say("wants_key"), input),
    " ",
    h("button", { type: "submit" }, say("use")),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(NAME, input.value.trim());
    form.remove();
    done();
  });
  return form;
}
