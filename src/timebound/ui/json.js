// JSON as text: laid out, shortened and edited in place, so that large numbers and the user's layout survive.

/** The tokens of a JSON text; wrong JSON gives tokens too, so that it can still be shown. */
function scan(text) {
  const tokens = [];
  let at = 0;
  while (at < text.length) {
    const start = at;
    const char = text[at];
    if (/\s/.test(char)) {
      at += 1;
      continue;
    }
    if (char === '"') at = stringEnd(text, at);
    else if ("{}[],:".includes(char)) at += 1;
    else while (at < text.length && !/[\s{}[\],:"]/.test(text[at])) at += 1;
    tokens.push({ text: text.slice(start, at), start, end: at });
  }
  return tokens;
}

function stringEnd(text, start) {
  let at = start;
  for (;;) {
    at = text.indexOf('"', at + 1);
    if (at < 0) return text.length;
    let slashes = 0;
    while (text[at - 1 - slashes] === "\\") slashes += 1;
    if (slashes % 2 === 0) return at + 1;
  }
}

const opens = (token) => token === "{" || token === "[";
const closes = (token) => token === "}" || token === "]";

/** Lays valid JSON out over lines; a list of plain values stays on one. */
export function indent(text) {
  const tokens = scan(text).map((token) => token.text);
  const newline = (depth) => "\n" + "  ".repeat(depth);
  let out = "";
  const lists = []; // for each open bracket: is it written on one line?
  tokens.forEach((token, i) => {
    const flat = lists.at(-1);
    if (opens(token)) {
      let end = i + 1;
      while (end < tokens.length && !opens(tokens[end]) && !closes(tokens[end])) end += 1;
      lists.push(tokens[end] === "]" || (tokens[end] === "}" && end === i + 1));
      out += token + (lists.at(-1) ? "" : newline(lists.length));
    } else if (closes(token)) {
      lists.pop();
      out += (flat ? "" : newline(lists.length)) + token;
    } else if (token === ",") out += flat ? ", " : "," + newline(lists.length);
    else out += token === ":" ? ": " : token;
  });
  return out;
}

/** The same text with long strings cut, for showing. */
export function shorten(text, longest = 96) {
  let out = "";
  let at = 0;
  for (const token of scan(text)) {
    if (token.text[0] !== '"' || token.text.length <= longest) continue;
    const left = token.text.length - 48;
    out += text.slice(at, token.start) + token.text.slice(0, 48) + `… ${left.toLocaleString("en")} more"`;
    at = token.end;
  }
  return out + text.slice(at);
}

/** The text with its strings escaped as JavaScript does and its other values changed by `write`; the layout stays. */
export function literals(text, write) {
  let out = "";
  let at = 0;
  for (const token of scan(text)) {
    const read = token.text[0] === '"' ? parse(token.text) : undefined;
    // "\/" and halves of characters mean something else elsewhere. What was cut to be shown may be no JSON any more.
    const written = read === undefined ? write(token.text) : JSON.stringify(read);
    out += text.slice(at, token.start) + written;
    at = token.end;
  }
  return out + text.slice(at);
}

/** The parsed text, or undefined where it is not JSON. */
export function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** The text of an object with one field set to JSON as written, and all else untouched; other texts come back. */
export function setField(text, name, written) {
  const object = parse(text);
  if (!isObject(object)) return text;
  const tokens = scan(text);
  const at = fieldAt(tokens, name);
  if (at >= 0)
    return text.slice(0, tokens[at + 2].start) + written + text.slice(valueEnd(tokens, at + 2).end);
  const field = `${JSON.stringify(name)}: ${written}`;
  const last = tokens.at(-1); // new fields go to the end, where one looks for them
  const before = text.slice(0, last.start).trimEnd();
  return `${before}${Object.keys(object).length ? "," : ""}\n  ${field}\n${text.slice(last.start)}`;
}

/** The text of an object without one field, and all else untouched. */
export function removeField(text, name) {
  if (!isObject(parse(text))) return text;
  const tokens = scan(text);
  const at = fieldAt(tokens, name);
  if (at < 0) return text;
  const end = tokens.indexOf(valueEnd(tokens, at + 2));
  const isLast = tokens[end + 1].text !== ",";
  if (!isLast) return text.slice(0, tokens[at].start) + text.slice(tokens[end + 2].start);
  return (
    text.slice(0, tokens[at - 1].text === "," ? tokens[at - 1].start : tokens[at].start) +
    text.slice(tokens[end].end)
  );
}

/** The place of a top-level field's name among the tokens, or -1; of two with one name the last counts, as in JSON. */
function fieldAt(tokens, name) {
  let depth = 0;
  let found = -1;
  tokens.forEach(({ text }, i) => {
    if (opens(text)) depth += 1;
    else if (closes(text)) depth -= 1;
    else if (depth === 1 && text[0] === '"' && tokens[i + 1].text === ":" && JSON.parse(text) === name)
      found = i;
  });
  return found;
}

/** The last token of the value that starts at a place. */
function valueEnd(tokens, first) {
  let depth = 0;
  for (let i = first; ; i += 1) {
    if (opens(tokens[i].text)) depth += 1;
    if (closes(tokens[i].text)) depth -= 1;
    if (depth === 0) return tokens[i];
  }
}
