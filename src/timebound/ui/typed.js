// The body of a model with a typed request: one JSON text, edited as a form or as it is.

import { h, switcher } from "./dom.js";
import { form } from "./form.js";
import { indent, isObject, parse, removeField, setField, shorten } from "./json.js";
import { pythonText, pythonValue } from "./python.js";
import { fields, sample } from "./schema.js";
import { say } from "./words.js";

const LONGEST_ARGUMENT = 100_000; // bytes; Linux refuses a single argument above 128 KiB
const LONGEST_FORM_VALUE = 20_000; // characters of one list; beyond, a browser gets slow and nobody reads it

/** A body: element, option, type, content(), request(), beforeSend(), show(body), complain(field, sentence), curl(), python(). */
export function typedBody(model, changed) {
  const start = indent(JSON.stringify(model.example ?? sample(model.request_schema) ?? {}));
  let good = start; // the last text that was an object: what the form edits
  const body = { type: "application/json" };
  const editor = h("textarea", {
    rows: 14,
    wrap: "off",
    spellcheck: false,
    autocapitalize: "off",
    autocomplete: "off",
    "aria-label": "JSON body",
  });
  const note = h("p", { class: "complaint", "aria-live": "polite", hidden: true });
  const tell = (sentence) => {
    note.hidden = !sentence;
    note.textContent = sentence;
  };
  const inputs = form(model, (name, written) => {
    write(written === null ? removeField(good, name) : setField(good, name, written), false);
  });

  const read = (showForm) => {
    const value = parse(editor.value);
    tell(value === undefined ? say("bad_json") : "");
    if (isObject(value)) {
      good = editor.value;
      if (showForm) inputs.show(value);
    }
    changed();
  };
  const write = (text, showForm = true) => {
    editor.value = text;
    read(showForm);
  };
  editor.addEventListener("input", () => {
    inputs.settle();
    read(true);
  });

  const json = h("div", { class: "field" }, editor, note);
  const ways = [
    ["form", say("form"), inputs.element],
    ["json", "JSON", json],
  ];
  // A tensor of a thousand numbers, or a body that is no object, is better off as text.
  const isForForm = !inputs.isEmpty && isObject(parse(start)) && listsOf(start) <= LONGEST_FORM_VALUE;
  const way = switcher("How to write the body", isForForm ? ways : ways.slice(1));
  if (isForForm) body.bar = way.bar;
  body.element = h("div", {}, isForForm ? inputs.element : null, json);
  body.pictures = inputs.pictures;

  const key = model.key ? fields(model.request_schema).find(({ name }) => name === model.key) : undefined;
  const fresh = h("input", { type: "checkbox", checked: true });
  body.option = key
    ? h("label", { class: "inline" }, fresh, say("new_key"), h("code", {}, model.key), say("each_time"))
    : null;
  body.reset = () => {
    inputs.settle();
    write(start);
  };
  body.content = () => editor.value;
  body.request = () => parse(editor.value);
  body.key = () => (model.key ? (parse(editor.value)?.[model.key] ?? null) : null);
  body.beforeSend = () => {
    inputs.settle();
    if (key && fresh.checked) write(setField(editor.value, model.key, JSON.stringify(freshKey(key.schema))));
  };
  body.show = (sampled) => {
    inputs.settle();
    write(indent(JSON.stringify(sampled.body)));
  };
  body.complain = (field, sentence) => {
    const isShown = inputs.complain(field, sentence);
    if (!json.hidden) tell(field ? `${field}: ${sentence}` : sentence);
    return isShown;
  };
  body.curl = (isShort) => {
    const text = isShort ? shorten(editor.value) : editor.value;
    // Decided by the real body, so that what is shown is what is copied.
    if (new Blob([editor.value]).size <= LONGEST_ARGUMENT) return { data: ["--data-raw", text] };
    // printf is part of the shell and has no such limit; it adds no newline, so the body stays the same.
    return { before: ["printf %s", text], data: ["--data-binary", "@-"] };
  };
  body.python = (isShort) => {
    const text = isShort ? shorten(editor.value) : editor.value;
    const isJson = parse(editor.value) !== undefined;
    return { item: isJson ? pythonValue(text) : `${pythonText(text)}.encode()`, isJson };
  };
  write(start);
  return body;
}

/** How long the longest list of an object is, as text. */
function listsOf(text) {
  const lengths = Object.values(parse(text)).map((value) =>
    Array.isArray(value) ? JSON.stringify(value).length : 0,
  );
  return Math.max(0, ...lengths);
}

/** A key that nobody had before. */
export function freshKey(schema) {
  const [number, ...rest] = crypto.getRandomValues(new Uint32Array(4));
  if ([schema.type].flat().includes("integer")) return number;
  const digits = [number, ...rest].map((word) => word.toString(16).padStart(8, "0")).join("");
  return [
    digits.slice(0, 8),
    digits.slice(8, 12),
    `4${digits.slice(13, 16)}`,
    `8${digits.slice(17, 20)}`,
    digits.slice(20),
  ].join("-");
}
