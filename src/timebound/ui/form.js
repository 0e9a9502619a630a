// A form made from a schema: one control per field, each with its label, its hint and room for a complaint.

import { h, newId, sentence } from "./dom.js";
import { indent, parse } from "./json.js";
import { knownView } from "./known.js";
import { about, fields } from "./schema.js";
import { sketch } from "./sketch.js";
import { say } from "./words.js";

const SHORT = 80; // characters; what may be longer gets a text box of several lines

/**
 * `changed(name, written)` gets each edit: the field's value as JSON text, or null to leave the field out.
 * `show(body)` fills the form, `complain(field, what)` says whether there was a field to say it beside.
 */
export function form(model, changed) {
  const rows = new Map();
  for (const field of fields(model.request_schema)) {
    const isKey = field.name === model.key;
    const example = model.example?.[field.name];
    // A key is seldom written by hand, and what the example does without is seldom needed.
    const isRare = isKey || (!field.isRequired && example === undefined);
    const edit = (written) => changed(field.name, written);
    rows.set(field.name, { ...row(field, example, isKey, edit), isRare });
  }
  const all = [...rows.values()];
  const [shown, rare] = [all.filter(({ isRare }) => !isRare), all.filter(({ isRare }) => isRare)];
  const isFolded = shown.length > 0 && rare.length > 0;
  const more = h(
    "details",
    { class: "more" },
    h("summary", {}, say(rare.length === 1 ? "more_one" : "more_fields", { count: rare.length })),
    rare.map(({ element }) => element),
  );
  const top = about(model.request_schema);
  const element = h(
    "div",
    { class: "form" },
    top && h("p", { class: "quiet" }, sentence(top)),
    (isFolded ? shown : all).map((one) => one.element),
    isFolded && more,
  );
  return {
    element,
    pictures: all.map((one) => one.board).filter(Boolean),
    isEmpty: rows.size === 0,
    show: (body) => rows.forEach((one, name) => one.show(body[name])),
    complain: (path, what) => {
      const one = rows.get(String(path ?? "").split(/[.[]/)[0]);
      one?.complain(what);
      if (one?.isRare) more.open = true;
      return Boolean(one);
    },
    settle: () => rows.forEach((one) => one.complain("")),
  };
}

function row(field, example, isKey, changed) {
  const [id, hintId, complaintId] = [newId(), newId(), newId()];
  const complaint = h("p", { id: complaintId, class: "complaint", role: "alert", hidden: true });
  const complain = (what) => {
    complaint.hidden = !what;
    complaint.textContent = what;
    if (what) control.input.setAttribute("aria-invalid", "true");
    else control.input.removeAttribute("aria-invalid");
  };
  const control = CONTROLS[field.kind](field, {
    id,
    example,
    isKey,
    edit: (written) => {
      complain("");
      changed(written);
    },
    complain,
  });
  control.input.setAttribute("aria-describedby", `${hintId} ${complaintId}`);
  const notes = [kindName(field), field.isRequired ? null : say("optional")].filter(Boolean).join(", ");
  const label = h(
    field.kind === "picture" ? "p" : "label",
    { class: "name" },
    field.name,
    " ",
    h("span", { id: hintId, class: "quiet" }, notes),
  );
  if (field.kind !== "picture") label.htmlFor = id;
  const hint = field.hint && h("p", { class: "quiet" }, sentence(field.hint));
  const element = h(
    "div",
    { class: "field", "data-kind": field.kind, "data-name": field.name },
    label,
    hint,
    control.element ?? control.input,
    complaint,
  );
  return { element, show: control.show, complain, board: control.board };
}

function kindName({ kind, schema }) {
  if (kind === "picture") return say("picture_kind");
  if (kind === "choice") return "";
  const limits = [schema.minimum, schema.maximum];
  const range = limits.every((limit) => limit !== undefined) ? ` ${limits.join(" to ")}` : "";
  return kind === "json"
    ? ([schema.type].flat().find((one) => one !== "null") ?? "JSON")
    : schema.type + range;
}

/** An empty control leaves an optional field out. */
const unlessEmpty = (field, text, written) => (text === "" && !field.isRequired ? null : written);
const plain = (value) => (value === undefined || value === null ? "" : String(value));
const placeholder = (value) => (value === undefined || value === null ? "" : String(value));

// --- controls: (field, { id, example, isKey, edit, complain }) -> { input, element?, show(value), board? } ------------

const CONTROLS = {
  text(field, { id, example, isKey, edit }) {
    const { format, maxLength, pattern } = field.schema;
    const isShort = isKey || format || pattern || maxLength <= SHORT;
    const isLong = String(example ?? "").length > SHORT;
    const options = { id, placeholder: placeholder(field.default), spellcheck: false, autocomplete: "off" };
    const input = isShort
      ? h("input", { ...options, type: "text" })
      : h("textarea", { ...options, rows: isLong ? 6 : 2, class: "prose" });
    input.addEventListener("input", () => edit(unlessEmpty(field, input.value, JSON.stringify(input.value))));
    return { input, show: (value) => show(input, plain(value)) };
  },

  number(field, { id, edit }) {
    const input = h("input", {
      id,
      type: "text",
      inputMode: "decimal",
      placeholder: placeholder(field.default),
      autocomplete: "off",
    });
    // As typed: large numbers keep their digits, and what is no number is for the server to refuse in its own words.
    const written = (text) =>
      /^-?\d+(\.\d+)?([eE][+-]?\d+)?$/.test(text) && parse(text) !== undefined ? text : JSON.stringify(text);
    input.addEventListener("input", () =>
      edit(unlessEmpty(field, input.value.trim(), written(input.value.trim()))),
    );
    return { input, show: (value) => show(input, plain(value)) };
  },

  switch(field, { id, edit }) {
    if (field.isNullable) return choice(field, id, edit, [true, false]);
    const input = h("input", { id, type: "checkbox" });
    input.addEventListener("change", () => edit(String(input.checked)));
    return { input, show: (value) => (input.checked = Boolean(value ?? field.default)) };
  },

  choice: (field, { id, edit }) => choice(field, id, edit, field.schema.enum),

  json(field, { id, edit, complain }) {
    const input = h("textarea", {
      id,
      rows: 3,
      spellcheck: false,
      autocomplete: "off",
      placeholder: field.default ? JSON.stringify(field.default) : "",
      wrap: "off",
    });
    input.addEventListener("input", () => {
      const text = input.value.trim();
      const isJson = !text || parse(text) !== undefined;
      // As typed, for the server to refuse in its own words: an earlier value would be answered as if it were this one.
      edit(isJson ? text || null : JSON.stringify(text));
      if (!isJson) complain(say("json_yet"));
    });
    const written = (value) => (value === undefined || value === null ? "" : indent(JSON.stringify(value)));
    return {
      input,
      show: (value) => {
        show(input, written(value));
        input.rows = Math.min(Math.max(input.value.split("\n").length, 2), 10);
      },
    };
  },

  picture(field, { edit }) {
    const board = sketch((base64) => edit(JSON.stringify(base64)), { label: field.name });
    const input = board.element.querySelector("canvas");
    return { input, element: h("div", {}, board.element, knownView(field.schema)), show: board.show, board };
  },
};

function choice(field, id, edit, values) {
  const left =
    field.default === undefined || field.default === null ? say("not_given") : say("by_default", { value: field.default });
  const none = field.isRequired ? [] : [h("option", { value: "" }, left)];
  const input = h(
    "select",
    { id },
    none,
    values.map((value) => h("option", { value: JSON.stringify(value) }, String(value))),
  );
  input.addEventListener("change", () => edit(input.value || null));
  return {
    input,
    show: (value) => (input.value = value === undefined || value === null ? "" : JSON.stringify(value)),
  };
}

/** What is being typed is left alone: it may be on its way to a value. */
function show(input, text) {
  if (document.activeElement !== input && input.value !== text) input.value = text;
}
