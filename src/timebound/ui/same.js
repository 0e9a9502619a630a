// The same call from elsewhere, to copy: one tab per program that can make it.

import { copy, h, switcher } from "./dom.js";
import { curlCommand, pythonCode } from "./snippets.js";
import { say } from "./words.js";

const PROGRAMS = [
  ["curl", "curl", curlCommand],
  ["python", "Python", pythonCode],
];

/** `call()` gives url, model, headers and body; `refresh()` shows it anew. */
export function sameView(call) {
  const button = h("button", { type: "button" }, say("copy"));
  const note = h("span", { class: "quiet" });
  const tabs = PROGRAMS.map(([name, title, write]) => {
    const label = `The same call for ${title}`;
    return { name, title, write, shown: h("pre", { tabIndex: 0, role: "region", "aria-label": label }) };
  });
  let chosen = tabs[0];
  const refresh = () => {
    const { shown, write } = chosen;
    shown.textContent = write(call(), true);
    note.textContent =
      shown.textContent === write(call(), false) ? "" : say("cut_here");
  };
  const way = switcher(
    "Which program",
    tabs.map(({ name, title, shown }) => [name, title, shown]),
    (name) => {
      chosen = tabs.find((tab) => tab.name === name);
      refresh();
    },
  );
  button.addEventListener("click", async () => {
    try {
      await copy(chosen.write(call(), false));
      button.textContent = say("copied");
    } catch {
      button.textContent = say("copy_failed");
    }
    setTimeout(() => (button.textContent = say("copy")), 1500);
  });
  const head = h("div", { class: "head" }, h("h3", {}, say("same")), way.bar, note, button);
  return {
    element: h(
      "section",
      { class: "same" },
      head,
      tabs.map(({ shown }) => shown),
    ),
    refresh,
  };
}
