// A call as a program for Python's client, and as a command for curl.

import { literals } from "./json.js";

const STEP = "    ";
const WORDS = { true: "True", false: "False", null: "None" };

/** JSON as what Python writes for it; JSON's texts and numbers are Python's too, once their escapes are. */
export const pythonValue = (json) => literals(json, (word) => WORDS[word] ?? word);

/** A text as Python writes it. */
export const pythonText = (text) => JSON.stringify(text);

/** The program for a call of url, model, headers and body. */
export function pythonCode({ url, model, headers, body }, isShort) {
  const { item, needs, isJson } = body.python(isShort);
  const { origin, pathname } = new URL(url);
  const name = pathname === `/predictions/${model.name}` ? model.name : pathname;
  const limit_s = Number(headers["Timebound-Timeout-Ms"]) / 1000;
  const media = headers["Content-Type"];
  const given = [pythonText(name), item.replaceAll("\n", `\n${STEP}${STEP}`)];
  const usual = isJson ? "application/json" : "application/octet-stream"; // what the client says by itself
  if (media !== usual) given.push(`content_type=${pythonText(media)}`);
  if (model.key) given.push(`key=${keyOf(body.request(), model.key)}`);
  if (limit_s) given.push(`deadline=${limit_s}`);
  if (headers["Timebound-Details"]) given.push("votes=True");
  const key = headers["X-API-Key"];
  const made = [pythonText(origin), ...(key ? [`api_key=${pythonText(key)}`] : [])].join(", ");
  return [
    ...(needs ? [needs, ""] : []),
    "from timebound import Client",
    "",
    `with Client(${made}) as client:`,
    `${STEP}answer = client.ask(`,
    ...given.map((one) => `${STEP}${STEP}${one},`),
    `${STEP})`,
    "print(answer.value)",
    "print(answer.quality, answer.source)",
  ].join("\n");
}

/** The key in a body's field, as the server reads it; None leaves it to the server where there is none. */
function keyOf(request, field) {
  const value = field.split(".").reduce((inner, name) => inner?.[name], request);
  const isKey = typeof value === "string" || Number.isSafeInteger(value);
  return isKey && value !== "" ? pythonText(String(value)) : "None";
}

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** The command for a call of url, headers and body. */
export function curlCommand({ url, headers, body }, isShort) {
  const { before, data } = body.curl(isShort);
  const [print, text, rest = ""] = before ?? [];
  const lines = Object.entries(headers).map(([name, value]) => `-H ${quote(`${name}: ${value}`)}`);
  const [option, value] = data;
  const sent = `${option} ${value === "@-" ? value : quote(value)}`;
  return (
    (before ? `${print} ${quote(text)}${rest} |\n` : "") +
    [`curl -i ${quote(url)}`, ...lines, sent].join(" \\\n  ")
  );
}
