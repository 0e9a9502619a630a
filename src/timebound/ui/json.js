// JSON as text: laid out, shortened and edited in place, so that large numbers and the user's layout survive.
// And JSON Schema: an example made from it.

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

/** The parsed text, or undefined where it is not JSON. */
export function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** The text of an object with one field set and all else untouched; other texts come back as they are. */
export function setField(text, name, value) {
  const object = parse(text);
  if (!isObject(object)) return text;
  const tokens = scan(text);
  const written = JSON.stringify(value);
  let depth = 0;
  for (let i = 0; i < tokens.length; i += 1) {
    const token = tokens[i].text;
    if (opens(token)) depth += 1;
    else if (closes(token)) depth -= 1;
    else if (depth === 1 && token[0] === '"' && tokens[i + 1].text === ":" && JSON.parse(token) === name) {
      return text.slice(0, tokens[i + 2].start) + written + text.slice(valueEnd(tokens, i + 2));
    }
  }
  const field = `${JSON.stringify(name)}: ${written}`;
  const [first] = tokens;
  return (
    text.slice(0, first.end) + (Object.keys(object).length ? `\n  ${field},` : field) + text.slice(first.end)
  );
}

function valueEnd(tokens, first) {
  let depth = 0;
  for (let i = first; ; i += 1) {
    if (opens(tokens[i].text)) depth += 1;
    if (closes(tokens[i].text)) depth -= 1;
    if (depth === 0) return tokens[i].end;
  }
}

/** Follows references, and takes the first choice that is not null. */
function settle(schema, root) {
  let part = schema;
  for (let hops = 0; isObject(part) && hops < 32; hops += 1) {
    const choices = part.anyOf ?? part.oneOf;
    if (typeof part.$ref === "string") part = lookUp(root, part.$ref);
    else if (Array.isArray(choices)) part = choices.find((choice) => choice.type !== "null") ?? choices[0];
    else return part;
  }
  return {};
}

function lookUp(root, pointer) {
  const steps = decodeURIComponent(pointer).split("/").slice(1);
  return steps.reduce((part, step) => part?.[step.replaceAll("~1", "/").replaceAll("~0", "~")], root);
}

/** A value that fits the schema well enough to start editing from. */
export function sample(schema, root = schema, depth = 0) {
  if (!isObject(schema) || depth > 5) return null;
  if (schema.default !== undefined) return schema.default;
  const part = settle(schema, root);
  if (part.const !== undefined) return part.const;
  if (part.enum?.length) return part.enum[0];
  if (part.examples?.length) return part.examples[0];
  const type = [part.type].flat().find((name) => name !== "null");
  if (type === "object" || part.properties) {
    const fields = Object.entries(part.properties ?? {});
    return Object.fromEntries(fields.map(([name, field]) => [name, sample(field, root, depth + 1)]));
  }
  if (type === "array") return sampleList(part, root, depth);
  if (type === "string") return SAMPLES[part.format] ?? "";
  if (type === "integer" || type === "number") return part.minimum ?? 0;
  return type === "boolean" ? false : null;
}

function sampleList(part, root, depth) {
  if (part.prefixItems) return part.prefixItems.map((item) => sample(item, root, depth + 1));
  const length = Math.min(Math.max(part.minItems ?? 1, 1), 16);
  return Array.from({ length }, () => sample(part.items ?? {}, root, depth + 1));
}

const SAMPLES = {
  "date-time": "2030-01-31T12:00:00Z",
  date: "2030-01-31",
  time: "12:00:00Z",
  uuid: "00000000-0000-4000-8000-000000000000",
};

/** The name and settled schema of each field of the body. */
export function fields(schema) {
  return Object.entries(settle(schema ?? {}, schema).properties ?? {}).map(([name, field]) => [
    name,
    settle(field, schema),
  ]);
}

/** The first text field that carries a picture, or null. */
export function imageField(schema) {
  const texts = fields(schema).filter(([, field]) => [field.type].flat().includes("string"));
  const found =
    texts.find(([name]) => name === "image") ?? texts.find(([, field]) => field.contentEncoding === "base64");
  return found ? found[0] : null;
}
