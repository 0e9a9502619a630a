// The same call for curl, to copy.

import { copy, h } from "./dom.js";

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** `call()` gives url, headers and body; `refresh()` shows the command anew. */
export function curlView(call) {
  const shown = h("pre", { tabIndex: 0, role: "region", "aria-label": "The same call for curl" });
  const button = h("button", { type: "button" }, "Copy");
  const note = h("span", { class: "quiet" });
  const command = (isShort) => {
    const { url, headers, body } = call();
    const { before, data } = body.curl(isShort);
    const [print, text, rest = ""] = before ?? [];
    const lines = Object.entries(headers).map(([name, value]) => `-H ${quote(`${name}: ${value}`)}`);
    const [option, value] = data;
    const sent = `${option} ${value === "@-" ? value : quote(value)}`;
    return (
      (before ? `${print} ${quote(text)}${rest} |\n` : "") +
      [`curl -i ${quote(url)}`, ...lines, sent].join(" \\\n  ")
    );
  };
  const refresh = () => {
    shown.textContent = command(true);
    note.textContent =
      shown.textContent === command(false) ? "" : "Long values are cut here; Copy takes all of it.";
  };
  button.addEventListener("click", async () => {
    try {
      await copy(command(false));
      button.textContent = "Copied";
    } catch {
      button.textContent = "Copying failed";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  const head = h("div", { class: "head" }, h("h3", {}, "The same with curl"), note, button);
  return { element: h("section", { class: "curl" }, head, shown), refresh };
}
