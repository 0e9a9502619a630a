// The body of a model that takes bytes as they are: a picture, a text or a file, as far as the model says which.

import { bytes, bytesOf, h, newId, switcher } from "./dom.js";
import { pythonText } from "./python.js";
import { onDrop, sketch } from "./sketch.js";
import { say } from "./words.js";

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
