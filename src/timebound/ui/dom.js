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
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** A list of name and value pairs; pairs without a value are left out. */
export function facts(pairs, className = "facts") {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h(
    "dl",
    { class: className },
    known.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

/** Copies text, also on plain http from another machine, where browsers hide the clipboard API. */
export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = h("textarea", { value: text, class: "offscreen", readOnly: true });
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("the browser does not allow copying");
}

/** 0.0123 s -> "12.3 ms"; 1 s -> "1 s". */
export function duration(seconds) {
  if (seconds >= 1) return `${Number(seconds.toPrecision(3))} s`;
  const ms = seconds * 1000;
  return `${ms >= 100 ? Math.round(ms) : Number(ms.toPrecision(ms >= 10 ? 3 : 2))} ms`;
}
