// The box that calls one model: a body to edit, the same call for curl, and what came back.

import { answerView, failureView } from "./answer.js";
import { copy, h } from "./dom.js";
import { fields, imageField, indent, isObject, parse, sample, setField, shorten } from "./json.js";
import { sketch } from "./sketch.js";

const LONGEST_ARGUMENT = 100_000; // bytes; Linux refuses a single argument above 128 KiB

/** The box for one model of /v1/models. */
export function callBox(model) {
  const url = location.origin + model.paths[0];
  const body = model.body === "raw" ? fileBody() : jsonBody(model);
  const timeout = h("input", {
    type: "number",
    min: "1",
    step: "any",
    placeholder: String(Number((model.deadline_s * 1000).toPrecision(6))),
    inputMode: "numeric",
  });
  const send = h("button", { type: "submit", class: "main" }, "Send");
  const result = h(
    "div",
    { class: "result", role: "status" },
    h("p", { class: "quiet" }, "The answer will be here."),
  );
  const curl = curlView(() => [url, headers(), body]);

  const headers = () => {
    const limit = timeout.value ? { "Timebound-Timeout-Ms": timeout.value } : {};
    return { "Content-Type": body.type, ...limit };
  };
  const submit = async (event) => {
    event.preventDefault();
    if (send.disabled) return;
    body.beforeSend();
    send.disabled = true;
    send.textContent = "Waiting";
    const limit_s = Math.min(model.deadline_s, Number(timeout.value) / 1000 || Infinity);
    try {
      const response = await exchange(url, headers(), body.content(), limit_s);
      result.replaceChildren(...answerView(response, limit_s).filter(Boolean));
    } catch (error) {
      result.replaceChildren(...failureView(error));
    }
    send.disabled = false;
    send.textContent = "Send";
  };
  body.onchange = curl.refresh;
  timeout.addEventListener("input", curl.refresh);
  curl.refresh();
  const request = h(
    "form",
    { onsubmit: submit },
    body.element,
    h(
      "div",
      { class: "actions" },
      h("div", {}, send, body.reset),
      h("div", {}, body.option, h("label", { class: "inline" }, "Timeout, ms", timeout)),
    ),
  );
  return h("div", { class: "call" }, request, result, curl.element);
}

async function exchange(url, headers, content, limit_s) {
  const started = performance.now();
  // The server keeps the deadline; this limit only frees the button if the server is gone.
  const signal = AbortSignal.timeout(limit_s * 1000 + 30_000);
  const response = await fetch(url, { method: "POST", headers, body: content, signal });
  const text = await response.text();
  const elapsed_s = (performance.now() - started) / 1000;
  return {
    status: response.status,
    statusText: response.statusText,
    headers: response.headers,
    text,
    elapsed_s,
  };
}

// --- bodies: element, reset, option, type, content(), beforeSend(), curl(), onchange ------------------

function jsonBody(model) {
  const start = indent(JSON.stringify(model.example ?? sample(model.request_schema) ?? {}));
  const picture = imageField(model.request_schema);
  const keyField = model.key ? fields(model.request_schema).find(([name]) => name === model.key) : undefined;
  const editor = h("textarea", {
    value: start,
    rows: Math.min(Math.max(start.split("\n").length, 4), 14) + 1,
    wrap: "off",
    spellcheck: false,
    autocapitalize: "off",
    autocomplete: "off",
  });
  const note = h("p", { class: "note", "aria-live": "polite" });
  const board = picture ? sketch((base64) => write(setField(editor.value, picture, base64))) : null;
  const fresh = h("input", { type: "checkbox", checked: true });
  const body = { type: "application/json", onchange: () => {} };

  const changed = () => {
    const value = parse(editor.value);
    note.textContent = value === undefined ? "This is not valid JSON; the server will refuse it." : "";
    if (board && isObject(value)) board.show(value[picture]);
    body.onchange();
  };
  const write = (text) => {
    editor.value = text;
    changed();
  };
  editor.addEventListener("input", changed);
  editor.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) editor.form.requestSubmit();
  });
  if (board && isObject(model.example)) board.show(model.example[picture]);
  body.element = h("div", {}, board?.element, h("label", { class: "field" }, "JSON body", editor), note);
  body.reset = h("button", { type: "button", onclick: () => write(start) }, "Reset");
  const why = "Off: the same key with the same body gets the stored result";
  body.option = keyField
    ? h("label", { class: "inline", title: why }, fresh, "New ", h("code", {}, model.key), " each time")
    : null;
  body.content = () => editor.value;
  body.beforeSend = () => {
    if (keyField && fresh.checked) write(setField(editor.value, model.key, freshKey(keyField[1])));
  };
  body.curl = (shown) => {
    const text = shown ? shorten(editor.value) : editor.value;
    // Decided by the real body, so that what is shown is what is copied.
    if (new Blob([editor.value]).size <= LONGEST_ARGUMENT) return { data: `--data-raw ${quote(text)}` };
    // printf is part of the shell and has no such limit; it adds no newline, so the body stays the same.
    return { before: `printf %s ${quote(text)} |\n`, data: "--data-binary @-" };
  };
  return body;
}

function fileBody() {
  const input = h("input", { type: "file", required: true });
  const body = { type: "application/octet-stream", reset: null, option: null, onchange: () => {} };
  input.addEventListener("change", () => body.onchange());
  body.element = h("label", { class: "field" }, "File to send as it is", input);
  body.content = () => input.files[0];
  body.beforeSend = () => {};
  body.curl = () => ({ data: `--data-binary ${quote(`@${input.files[0]?.name ?? "FILE"}`)}` });
  return body;
}

function freshKey(schema) {
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

// --- curl --------------------------------------------------------------------------------------------

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function curlView(call) {
  const shown = h("pre", { tabIndex: 0, role: "region", "aria-label": "The same call for curl" });
  const button = h("button", { type: "button" }, "Copy");
  const command = (short) => {
    const [url, headers, body] = call();
    const { before = "", data } = body.curl(short);
    const lines = Object.entries(headers).map(([name, value]) => `-H ${quote(`${name}: ${value}`)}`);
    return before + [`curl -i ${quote(url)}`, ...lines, data].join(" \\\n  ");
  };
  const note = h("span", { class: "quiet" });
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
  return { element: h("div", { class: "curl" }, head, shown), refresh };
}
