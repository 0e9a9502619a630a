// What a model can answer, where the schema of its picture says so: `x-answers`, a text of single characters,
// `x-named`, words for answers that say little by themselves, and `x-fallback`, what a fallback of the model comes to.

import { h } from "./dom.js";
import { fields } from "./schema.js";
import { say } from "./words.js";

/** The characters a picture is read as, folded away, with a box to search them; null where the schema has none. */
export function knownView(schema) {
  const all = [...(schema["x-answers"] ?? "")];
  if (!all.length) return null;
  const marks = all.map((one) => h("span", {}, one));
  const list = h("p", { class: "signs", lang: "zh-Hant", tabIndex: 0, role: "region", "aria-label": say("characters") }, marks);
  const count = h("span", { class: "quiet", "aria-live": "polite" });
  const search = () => {
    const wanted = new Set([...input.value.trim()]);
    marks.forEach((mark) => (mark.hidden = wanted.size > 0 && !wanted.has(mark.textContent)));
    const lacking = [...wanted].filter((one) => !all.includes(one)).join("");
    const found = marks.filter((mark) => !mark.hidden).length;
    count.textContent = wanted.size ? say("found_of", { count: found }) + (lacking && say("lacking", { lacking })) : "";
  };
  const input = h("input", {
    type: "text",
    placeholder: say("find_characters"),
    "aria-label": say("find_characters"),
    autocomplete: "off",
    oninput: search,
  });
  // Enter searches, it does not send the form around it.
  input.addEventListener("keydown", (event) => event.key === "Enter" && event.preventDefault());
  return h("details", { class: "known" }, h("summary", {}, say("knows", { count: all.length })), input, count, list);
}

/** The word for an answer, for a model whose schema names it otherwise. */
export function named(word, model) {
  const names = fields(model.request_schema).map(({ schema }) => schema["x-named"] ?? {});
  return names.find((one) => Object.hasOwn(one, word))?.[word] ?? word;
}

/** What stands in the place of a fallback's answer, for a model whose schema says so; or null. */
export function spared(model) {
  const said = fields(model.request_schema).map(({ schema }) => schema["x-fallback"]);
  return said.find((one) => typeof one === "string") ?? null;
}
