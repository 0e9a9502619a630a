// Builds elements. Every text from outside becomes a text node, so nothing a model says can turn into markup.

/** An element with properties, attributes, listeners (`onclick`) and children; null children are left out. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && !name.includes("-")) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(
    ...children.flat().filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** A part of a page, with its title. */
export const card = (id, title, ...children) => h("section", { class: "card", id }, h("h2", {}, title), ...children);

/** A row of column heads. */
export const heads = (names) => h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)));

/** A table with a title for who hears it; where it is too wide it scrolls by itself, also by keyboard. */
export const tableBox = (title, head, body, name = "wide") =>
  h("div", { class: name, tabIndex: 0, role: "region", "aria-label": title }, h("table", {}, h("caption", { class: "unseen" }, title), h("thead", {}, head), body));

/** A list of name and value pairs; pairs without a value are left out. */
export function facts(pairs, className = "facts") {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h(
    "dl",
    { class: className },
    known.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

/** A sentence whose `backticks` are shown as code. */
export const sentence = (text) => text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));

let lastId = 0;

/** An id that no other element has, for labels and what they label. */
export const newId = () => `e${(lastId += 1)}`;

/** A choice of a few ways, of which one is shown: `ways` are [name, title, element]. */
export function switcher(label, ways, chosen = () => {}) {
  const group = newId();
  const pick = (name) => {
    for (const [other, , element] of ways) element.hidden = other !== name;
    for (const input of bar.querySelectorAll("input")) input.checked = input.value === name;
    chosen(name);
  };
  const bar = h(
    "fieldset",
    { class: "ways" },
    h("legend", { class: "unseen" }, label),
    ways.map(([name, title]) =>
      h(
        "label",
        {},
        h("input", { type: "radio", name: group, value: name, class: "unseen", onchange: () => pick(name) }),
        h("span", {}, title),
      ),
    ),
  );
  pick(ways[0][0]);
  return { bar, pick };
}

/** Copies text, also on plain http from another machine, where browsers hide the clipboard API. */
export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = h("textarea", { value: text, class: "unseen", readOnly: true });
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("the browser does not allow copying");
}

/** The bytes that a base64 text stands for. */
export const bytesOf = (base64) => Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));

/** 0.0123 s -> "12.3 ms"; 1 s -> "1 s". */
export function duration(seconds) {
  if (seconds >= 1) return `${Number(seconds.toPrecision(3))} s`;
  const ms = seconds * 1000;
  return `${ms >= 100 ? Math.round(ms) : Number(ms.toPrecision(ms >= 10 ? 3 : 2))} ms`;
}

/** 1234567 -> "1.2 MB". */
export function bytes(count) {
  if (count < 1000) return `${count} ${count === 1 ? "byte" : "bytes"}`;
  return count < 1e6
    ? `${Number((count / 1e3).toPrecision(3))} kB`
    : `${Number((count / 1e6).toPrecision(3))} MB`;
}
