// Shows what came back: the answer or the problem, the members' votes, quality, and where the time went.

import { bytes, duration, facts, h } from "./dom.js";
import { beside, certainty, headline, shares } from "./headline.js";
import { indent, isObject, parse } from "./json.js";
import { named, spared } from "./known.js";
import { say } from "./words.js";

const STAGES = ["queue", "prepare", "infer", "finish"];
const LONGEST_SHOWN = 100_000; // characters; a browser gets slow long before a server does
const LARGEST_PICTURE = 640; // pixels a side

/** What to show for a response whose body was read; `request` is the body that was sent, where it was JSON. */
export function answerView(response, { model, limit_s, request }) {
  const { status, headers, text } = response;
  const isGood = status >= 200 && status < 300;
  const value = parse(text);
  const isProblem = !isGood && isObject(value) && (value.title || value.detail);
  const parts = [
    outcomeView(response, limit_s, isGood),
    isProblem ? problemView(value, headers) : null,
    isGood ? wordView(value, model, request, headers.get("Timebound-Quality")) : null,
    isGood ? votesView(headers, model, value, request) : null,
    isProblem ? null : bodyView(response, value),
    isGood ? howView(headers) : null,
    stagesView(headers.get("Server-Timing")),
  ];
  return parts.filter(Boolean);
}

/** What to show when there was no response at all. */
export function failureView(error) {
  const detail =
    error.name === "TimeoutError"
      ? say("took_long")
      : say("said_nothing", { why: error.message });
  return [h("div", { class: "problem" }, h("strong", {}, say("No_answer")), h("p", {}, detail))];
}

function outcomeView({ status, statusText, elapsed_s }, limit_s, isGood) {
  return h(
    "p",
    { class: "outcome" },
    h(
      "span",
      { class: "badge", "data-state": isGood ? "ready" : "failed" },
      `${status} ${statusText}`.trim(),
    ),
    h("span", {}, h("strong", {}, duration(elapsed_s)), say("round_trip")),
    h("span", { class: "quiet" }, say("budget_deadline", { deadline: duration(limit_s) })),
  );
}

function problemView(problem, headers) {
  const retry = headers.get("Retry-After");
  return h(
    "div",
    { class: "problem" },
    h("strong", {}, String(problem.title ?? say("Refused"))),
    problem.detail ? h("p", {}, String(problem.detail)) : null,
    facts([
      [say("Field"), code(problem.field)],
      [say("Code"), code(problem.code)],
      [say("Retry_after"), retry === null ? null : `${retry} s`],
      [say("request_id"), code(problem.request_id)],
    ]),
  );
}

const code = (value) => (value === undefined || value === null ? null : h("code", {}, String(value)));

// --- the answer ------------------------------------------------------------------------------------------

function wordView(answer, model, request, quality) {
  const word = headline(answer, request);
  if (word === null) return null;
  const spare = quality === "fallback" ? spared(model) : null;
  if (spare !== null) return h("div", { class: "word" }, h("p", { class: "big", "data-size": size(spare) }, spare));
  const shown = named(word, model);
  const other = beside(answer, word);
  return h(
    "div",
    { class: "word" },
    h("p", { class: "big", "data-size": size(shown) }, shown),
    sureView(certainty(answer)),
    other && h("p", { class: "quiet" }, say("likeliest", { ...other, share: percent(other.share) })),
    sharesView(answer),
  );
}

/** A single character fills the place; a sentence is for reading. */
function size(word) {
  const { length } = [...word];
  if (length <= 2) return "sign";
  return length <= 12 ? "word" : length <= 40 ? "line" : "text";
}

function sureView(share) {
  return share === null ? null : h("p", { class: "sure quiet" }, say("sure_of", { share: percent(share) }));
}

/** Nothing but certainty is written as 100 %. */
const percent = (share) => `${Math.min(Number((share * 100).toPrecision(3)), share < 1 ? 99.9 : 100)} %`;

function sharesView(answer) {
  const pairs = shares(answer);
  if (!pairs) return null;
  const most = Math.max(...pairs.map(([, share]) => share));
  return h(
    "dl",
    { class: pairs.some(([label]) => label.length > 2) ? "shares named" : "shares" },
    pairs.map(([label, share]) => {
      const bar = h("i", { "aria-hidden": "true" });
      bar.style.setProperty("--share", share);
      const name = h("dt", {}, label);
      return h(
        "div",
        { class: share === most ? "most" : "" },
        name,
        h("dd", {}, bar, h("span", {}, percent(share))),
      );
    }),
  );
}

function bodyView({ blob, text, headers }, value) {
  const type = headers.get("Content-Type") ?? "";
  if (value === undefined && !type.includes("json") && !type.startsWith("text/"))
    return bytesView(blob, type, text);
  const shown = text.slice(0, LONGEST_SHOWN);
  const left = text.length - shown.length;
  return h(
    "div",
    {},
    h(
      "pre",
      { class: "answer", tabIndex: 0, role: "region", "aria-label": say("as_came") },
      value !== undefined && !left ? indent(text) : shown || "(empty)",
    ),
    left
      ? h("p", { class: "quiet" }, `${left.toLocaleString("en")} more characters of ${type} are not shown.`)
      : null,
  );
}

/** Bytes: a picture if they are one, their text if they are one, else how many. */
function bytesView(blob, type, text) {
  const place = h("div", {}, h("p", { class: "quiet" }, `${bytes(blob.size)} of ${type || "unknown type"}`));
  createImageBitmap(blob).then(
    (picture) => {
      const scale = Math.min(1, LARGEST_PICTURE / Math.max(picture.width, picture.height));
      const canvas = h("canvas", {
        class: "came-picture",
        width: picture.width * scale,
        height: picture.height * scale,
        role: "img",
        "aria-label": "The answer is a picture",
      });
      canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
      place.prepend(canvas);
    },
    () => {
      const isText = !/[\u0000-\u0008\u000e-\u001f\ufffd]/.test(text);
      if (isText && text)
        place.prepend(h("pre", { class: "answer", tabIndex: 0 }, text.slice(0, LONGEST_SHOWN)));
    },
  );
  return place;
}

// --- the members' votes ----------------------------------------------------------------------------------

function votesView(headers, model, answer, request) {
  const votes = parse(headers.get("Timebound-Votes") ?? "");
  if (!Array.isArray(votes) || !votes.length) return null;
  const word = headline(answer, request);
  const heard = new Set(votes.map(({ member }) => member));
  const absent = (model.member_names ?? []).filter((name) => !heard.has(name));
  return h(
    "section",
    { class: "votes", "aria-label": say("votes_of") },
    h("h3", {}, say("votes_of")),
    h(
      "div",
      { class: "ballots" },
      votes.map((vote) => voteView(vote, word, model, request)),
      absent.map((name) =>
        h(
          "div",
          { class: "ballot absent" },
          h("p", { class: "quiet" }, name),
          h("p", { class: "quiet" }, say("absent")),
        ),
      ),
    ),
  );
}

function voteView(vote, word, model, request) {
  const own = headline(vote.answer, request);
  const said = vote.problem ?? (vote.bytes === undefined ? (own === null ? vote.answer : named(own, model)) : bytes(vote.bytes));
  const shown = typeof said === "string" ? said : said === undefined ? "not told" : JSON.stringify(said);
  const sure = certainty(vote.answer);
  const view = own !== null && isLabel(word) ? (own === word ? "agrees" : "differs") : null;
  const notes = [sure === null ? null : percent(sure), view && say(view)].filter(Boolean).join(", ");
  return h(
    "div",
    { class: "ballot", "data-view": view },
    h("p", { class: "quiet" }, vote.member),
    h("p", { class: "big", "data-size": own === null ? "text" : size(shown) }, shown),
    notes && h("p", { class: "quiet" }, notes),
  );
}

/** Members agree or differ on labels; of measured numbers each has its own. */
const isLabel = (word) => word !== null && !/^-?\d+\.\d|e-?\d+$/.test(word);

// --- how it came about -----------------------------------------------------------------------------------

function howView(headers) {
  const quality = headers.get("Timebound-Quality");
  const chip =
    quality && h("span", { class: "badge", "data-state": quality === "full" ? "ready" : "loading" }, say(quality));
  return facts([
    [say("quality_of"), chip],
    [say("Members"), headers.get("Timebound-Members")],
    [say("Source"), say(headers.get("Timebound-Source") ?? "")],
    [say("batch"), headers.get("Timebound-Batch")],
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
    h("span", {}, h("i", { class: "dot", "data-stage": name }), say(`part_${name}`)),
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
