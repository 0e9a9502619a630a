// The body of a call: one JSON text, edited as a form or as it is; or bytes as they are, a picture, a text or a file.

import { bytes, bytesOf, h, newId, switcher } from "./dom.js";
import { form } from "./form.js";
import { indent, isObject, parse, removeField, setField, shorten } from "./json.js";
import { fields, sample } from "./schema.js";
import { onDrop, sketch } from "./sketch.js";
import { pythonText, pythonValue } from "./snippets.js";
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

const LONGEST_SHOWN = 48; // characters of base64 in what is shown to copy; Copy takes all of it

/** A body with the same parts as a typed one. */
export function rawBody(model, changed) {
  const accepts = model.accepts ?? [];
  const takes = (kind) => accepts.some((media) => media.startsWith(`${kind}/`));
  const concrete = accepts.find((media) => !media.includes("*"));
  const makers = {
    picture: () => picturePart(accepts, changed),
    text: () => textPart(concrete ?? "text/plain", changed),
    file: () => filePart(accepts, concrete, changed),
  };
  const names = takes("image")
    ? ["picture"]
    : accepts.length && !takes("text") && !accepts.some((media) => media.includes("json"))
      ? ["file"]
      : ["text", "file"];
  const parts = Object.fromEntries(names.map((name) => [name, makers[name]()]));
  let chosen = names[0];
  const complaint = h("p", { class: "complaint", role: "alert", hidden: true });
  const complain = (sentence) => {
    complaint.hidden = !sentence;
    complaint.textContent = sentence;
  };
  const way = switcher(
    "What to send",
    names.map((name) => [
      name,
      say({ picture: "Picture", text: "Text", file: "File" }[name]),
      parts[name].element,
    ]),
    (name) => {
      chosen = name;
      complain("");
      changed();
    },
  );
  const part = () => parts[chosen];
  if (typeof model.example === "string") parts.text?.put(model.example);
  return {
    bar: names.length > 1 ? way.bar : null,
    element: h(
      "div",
      {},
      Object.values(parts).map(({ element }) => element),
      complaint,
    ),
    pictures: parts.picture ? [parts.picture.board] : [],
    option: null,
    get type() {
      return part().type();
    },
    reset: () => part().clear(),
    content: () => part().content(),
    request: () => undefined,
    beforeSend: () => complain(""),
    show: (sample) => {
      const isText = parts.text && (sample.media ?? "text/plain").startsWith("text/");
      if (names.length > 1) way.pick(isText ? "text" : "file");
      part().show(sample);
      changed();
    },
    complain: (field, sentence) => {
      complain(sentence);
      return true;
    },
    curl: (isShort) => part().curl(isShort),
    python: (isShort) => part().python(isShort),
  };
}

const cut = (base64, isShort) =>
  isShort && base64.length > LONGEST_SHOWN ? `${base64.slice(0, LONGEST_SHOWN)}…` : base64;
const piped = (base64, isShort) => ({
  before: ["printf %s", cut(base64, isShort), " | base64 -d"],
  data: ["--data-binary", "@-"],
});
const decoded = (base64, isShort) => ({
  needs: "import base64",
  item: `base64.b64decode(${pythonText(cut(base64, isShort))})`,
});
const fromFile = (name) => ({ needs: "from pathlib import Path", item: `Path(${pythonText(name)}).read_bytes()` });

// --- parts: element, type(), content(), show(sample), clear(), curl(isShort), python(isShort) --------------------------------------------

function picturePart(accepts, changed) {
  const nothing = { base64: "", media: "image/jpeg" }; // as the file that curl shows then
  let now = nothing;
  const board = sketch(
    (base64, media) => {
      now = { base64, media };
      changed();
    },
    { accept: accepts.join(",") },
  );
  const show = ({ data, media }) => {
    now = data ? { base64: data, media: media ?? "image/png" } : nothing;
    board.show(data);
  };
  return {
    element: h("div", { class: "field" }, board.element),
    board,
    type: () => now.media,
    content: () => new Blob([bytesOf(now.base64)]),
    show,
    clear: () => show({ data: "" }),
    // Without a picture there is nothing to pipe, and an empty body is refused.
    curl: (isShort) => (now.base64 ? piped(now.base64, isShort) : { data: ["--data-binary", "@photo.jpg"] }),
    python: (isShort) => (now.base64 ? decoded(now.base64, isShort) : fromFile("photo.jpg")),
  };
}

function textPart(media, changed) {
  const id = newId();
  const input = h("textarea", { id, rows: 6, class: "prose", oninput: () => changed() });
  return {
    element: h(
      "div",
      { class: "field" },
      h("label", { class: "name", htmlFor: id }, say("text_as_is")),
      input,
    ),
    type: () => media,
    content: () => input.value,
    put: (text) => (input.value = text),
    show: ({ data }) => (input.value = new TextDecoder().decode(bytesOf(data))),
    clear: () => {
      input.value = "";
      changed();
    },
    curl: () => ({ data: ["--data-raw", input.value] }),
    python: () => ({ item: `${pythonText(input.value)}.encode()` }),
  };
}

function filePart(accepts, concrete, changed) {
  let now = null; // a File, or { base64, media, title } of a sample
  const name = h("strong", {}, say("choose_file"));
  const size = h("span", { class: "quiet" }, accepts.join(", "));
  const input = h("input", { type: "file", class: "unseen", accept: accepts.join(",") });
  const zone = h("label", { class: "drop" }, input, name, size);
  const put = (what, title, length) => {
    now = what;
    name.textContent = title;
    size.textContent = length === null ? accepts.join(", ") : bytes(length);
    changed();
  };
  const take = (file) => file && put(file, file.name, file.size);
  input.addEventListener("change", () => take(input.files[0]));
  onDrop(zone, take);
  return {
    element: h("div", { class: "field" }, zone),
    type: () => (now?.media ?? now?.type) || concrete || "application/octet-stream",
    content: () => (now instanceof File ? now : new Blob(now ? [bytesOf(now.base64)] : [])),
    show: ({ data, media, title }) => put({ base64: data, media }, title, bytesOf(data).length),
    clear: () => {
      input.value = "";
      put(null, say("choose_file"), null);
    },
    curl: (isShort) =>
      now?.base64 ? piped(now.base64, isShort) : { data: ["--data-binary", `@${now?.name ?? "FILE"}`] },
    python: (isShort) => (now?.base64 ? decoded(now.base64, isShort) : fromFile(now?.name ?? "FILE")),
  };
}
