// The part of an answer that a person looks for first.

import { isObject } from "./json.js";

const TELLING = ["answer", "label", "prediction", "class", "category", "result", "text", "output"];
const DULL = /(^|_)(id|uuid|guid|key|retry|version|time|timestamp|date|at|ms|s)$/i;
const SURE = ["confidence", "probability", "score"];
const MOST_SHARES = 24;

const isScalar = (value) => ["string", "number", "boolean"].includes(typeof value);

/** The telling value of an answer as text, or null; what only repeats the request is not it. */
export function headline(answer, request) {
  if (isScalar(answer)) return written(answer);
  if (Array.isArray(answer) && answer.length === 1) return headline(answer[0], request);
  if (!isObject(answer)) return null;
  const name =
    TELLING.find((one) => isScalar(answer[one])) ??
    Object.keys(answer).find((one) => tells(one, answer, request));
  return name === undefined ? null : written(answer[name]);
}

function tells(name, answer, request) {
  const repeats = isObject(request) && request[name] === answer[name];
  return isScalar(answer[name]) && !DULL.test(name) && !SURE.includes(name) && !repeats;
}

function written(value) {
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  return String(Number(value.toPrecision(5)));
}

/** How sure the model says it is, 0 to 1, or null. */
export function certainty(answer) {
  if (!isObject(answer)) return null;
  const value = SURE.map((name) => answer[name]).find((one) => typeof one === "number");
  return value >= 0 && value <= 1 ? value : null;
}

/** What else was likely: a text with a confidence of its own (`x` and `x_confidence`) that is not the headline; or null. */
export function beside(answer, word) {
  if (!isObject(answer)) return null;
  const name = Object.keys(answer).find(
    (one) => typeof answer[one] === "string" && typeof answer[`${one}_confidence`] === "number",
  );
  const share = answer[`${name}_confidence`];
  return name === undefined || answer[name] === word || !(share >= 0 && share <= 1)
    ? null
    : { name, value: answer[name], share };
}

/** The first field that shares one whole among a few: pairs of label and share, or null. */
export function shares(answer) {
  if (!isObject(answer)) return null;
  for (const value of Object.values(answer)) {
    const pairs = Array.isArray(value) || isObject(value) ? Object.entries(value) : [];
    const isShared = pairs.every(([, share]) => typeof share === "number" && share >= 0 && share <= 1);
    const whole = isShared ? pairs.reduce((sum, [, share]) => sum + share, 0) : 0;
    if (pairs.length > 1 && pairs.length <= MOST_SHARES && Math.abs(whole - 1) < 0.02) return pairs;
  }
  return null;
}
