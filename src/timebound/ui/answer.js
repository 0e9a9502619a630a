// Shows what came back: status, answer or problem, quality, and where the time went.

import { duration, facts, h } from "./dom.js";
import { indent, isObject, parse } from "./json.js";

const STAGES = ["queue", "prepare", "infer", "finish"];
const LONGEST_SHOWN = 100_000; // characters; a browser gets slow long before a server does

/** What to show for a response whose body was read. */
export function answerView({ status, statusText, headers, text, elapsed_s }, deadline_s) {
  const good = status >= 200 && status < 300;
  const problem = good ? undefined : parse(text);
  return [
    h(
      "p",
      { class: "outcome" },
      h(
        "span",
        { class: "badge", "data-state": good ? "ready" : "failed" },
        `${status} ${statusText}`.trim(),
      ),
      h("span", {}, h("strong", {}, duration(elapsed_s)), " round trip"),
      h("span", { class: "quiet" }, `deadline ${duration(deadline_s)}`),
    ),
    isObject(problem) && (problem.title || problem.detail)
      ? problemView(problem, headers)
      : bodyView(text, headers),
    howView(headers),
    stagesView(headers.get("Server-Timing")),
  ];
}

/** What to show when there was no response at all. */
export function failureView(error) {
  const detail =
    error.name === "TimeoutError"
      ? "The server took too long."
      : `The server did not answer: ${error.message}`;
  return [h("div", { class: "problem" }, h("strong", {}, "No answer"), h("p", {}, detail))];
}

function problemView(problem, headers) {
  const retry = headers.get("Retry-After");
  return h(
    "div",
    { class: "problem" },
    h("strong", {}, String(problem.title ?? "Refused")),
    problem.detail ? h("p", {}, String(problem.detail)) : null,
    facts([
      ["Field", code(problem.field)],
      ["Code", code(problem.code)],
      ["Retry after", retry === null ? null : `${retry} s`],
      ["Request id", code(problem.request_id)],
    ]),
  );
}

const code = (value) => (value === undefined || value === null ? null : h("code", {}, String(value)));

function bodyView(text, headers) {
  const type = headers.get("Content-Type") ?? "";
  const shown = text.slice(0, LONGEST_SHOWN);
  const isJson = shown.length === text.length && parse(text) !== undefined;
  const left = text.length - shown.length;
  return h(
    "div",
    {},
    h(
      "pre",
      { class: "answer", tabIndex: 0, role: "region", "aria-label": "Answer" },
      isJson ? indent(text) : shown || "(empty)",
    ),
    left
      ? h("p", { class: "quiet" }, `${left.toLocaleString("en")} more characters of ${type} are not shown.`)
      : null,
  );
}

function howView(headers) {
  const quality = headers.get("Timebound-Quality");
  const chip =
    quality && h("span", { class: "badge", "data-state": quality === "full" ? "ready" : "loading" }, quality);
  return facts([
    ["Quality", chip],
    ["Members", headers.get("Timebound-Members")],
    ["Source", headers.get("Timebound-Source")],
    ["Batch", headers.get("Timebound-Batch")],
  ]);
}

function stagesView(header) {
  const times = serverTiming(header ?? "");
  const stages = STAGES.filter((name) => times.has(name));
  if (!stages.length) return null;
  const total_ms = stages.reduce((sum, name) => sum + times.get(name), 0);
  const bar = h("div", { class: "bar", "aria-hidden": "true" });
  for (const name of stages) {
    const part = h("span", { "data-stage": name });
    part.style.flexGrow = times.get(name) / (total_ms || 1);
    bar.append(part);
  }
  const legend = stages.map((name) => [
    h("span", {}, h("i", { class: "dot", "data-stage": name }), name),
    duration(times.get(name) / 1000),
  ]);
  return h("div", { class: "stages" }, bar, facts(legend, "facts legend"));
}

/** `queue;dur=0.2, infer;dur=12` -> stage and milliseconds. */
function serverTiming(header) {
  const times = new Map();
  for (const entry of header.split(",")) {
    const [name, ...parameters] = entry.split(";").map((part) => part.trim());
    const value = parameters.find((parameter) => parameter.startsWith("dur="));
    if (value) times.set(name, Math.max(0, Number(value.slice(4).replaceAll('"', "")) || 0));
  }
  return times;
}
