// The history page: what was asked and answered, counted, listed, drawn over time, and one by one; files to take away.

import { chart } from "./charts.js";
import { bytes, card, facts, h, heads, tableBox } from "./dom.js";
import { showNav } from "./nav.js";
import { pictureField } from "./schema.js";
import { ms } from "./sentences.js";
import { encode, thumbnail } from "./sketch.js";
import { look, passForm, read, takePass } from "./stream.js";
import { isKnown, language, say } from "./words.js";

const find = (id) => document.getElementById(id);
const format = (options) => new Intl.DateTimeFormat(language, { ...options, hour12: false });
const when = format({ dateStyle: "medium", timeStyle: "medium" });
const tick = format({ month: "numeric", day: "numeric", hour: "2-digit", minute: "2-digit" });
const BY = ["label", "user", "day", "model", "version", "quality", "source", "code", "reason", "verdict"];
const SPANS = { hour: 3600, day: 86_400, week: 604_800, yesterday: 0, ever: 0 };
const STEPS = [60, 300, 1800, 7200, 21_600, 86_400];
const SHOWN = 100;
const ROLLED_UP = ["model", "version", "quality", "source", "code"];
const NAMES = { quality: "quality_of", source: "Source", code: "error", request: "request_id", below: "less_sure" };

const named = (name) => say(NAMES[name] ?? name);
const input = (id, type = "search") => h("input", { id, type, autocomplete: "off", spellcheck: false });
const select = (id, words, any = true) => h("select", { id }, [...(any ? [["", say("any")]] : []), ...words].map(([value, text]) => h("option", { value }, text)));
const same = (words) => words.map((word) => [word, say(word)]);
const texts = ["model", "label", "user", "key", "request", "version", "reason", "code"];
const fields = Object.fromEntries(texts.map((name) => [name, input(name)]));
fields.quality = select("quality", same(["full", "partial", "fallback"]));
fields.source = select("source", same(["computed", "joined", "stored"]));
fields.verdict = select("verdict", same(["right", "wrong"]));
const day = input("day", "date");
const below = h("input", { id: "below", type: "number", min: 1, max: 100 });
const span = select("span", Object.keys(SPANS).map((one) => [one, say(`span_${one}`)]), false);
const order = select("order", [["newest", say("newest_first_order")], ["unsure", say("least_sure")]], false);
const ticks = ["has_input", "disagreed"].map((id) => h("input", { id, type: "checkbox" }));
const by = select("by", BY.map((one) => [one, named(one)]), false);
span.value = "day";

const counts = h("tbody");
const rows = h("tbody");
const said = h("p", { class: "quiet", role: "status" });
const more = h("button", { type: "button", onclick: () => trying(() => list(true)) }, say("more"));
const note = find("notice");
let rate = () => 0; // of the chart, a minute
const LINES = [["count", "asked", "--prepare"], ["in_time", "in_time", "--infer"], ["failed", "kind_failed", "--bad"]];
const overTime = chart(say("per_minute"), () => LINES.map(([name, word, ink]) => [name, say(word), ink]), { read: (name, place) => rate(name, place), show: (value) => String(Number(value?.toPrecision(3) ?? 0)), time: (at) => tick.format(at * 1000) });

/** Seconds since 1970 at the beginning of a day here, or of one after it. */
function midnight(text, days = 0) {
  const date = text ? new Date(`${text}T00:00`) : new Date();
  return new Date(date.getFullYear(), date.getMonth(), date.getDate() + days) / 1000;
}

function period() {
  if (day.value) return [midnight(day.value), midnight(day.value, 1)];
  if (span.value === "yesterday") return [midnight("", -1), midnight("")];
  return [SPANS[span.value] ? Math.floor(Date.now() / 1000) - SPANS[span.value] : 0, 0];
}

function filter(more = {}) {
  const given = Object.entries(fields).map(([name, field]) => [name, field.value.trim()]);
  const [since, until] = period();
  given.push(["since", since], ["until", until], ["below", below.value / 100], ...ticks.map((box) => [box.id, box.checked ? "1" : ""]));
  return new URLSearchParams([...given.filter(([, value]) => value), ...Object.entries(more)]);
}

function build() {
  showNav("/history", say("history"));
  const field = (name, control) => h("label", {}, named(name), control);
  const all = { ...fields, below, span, day, order };
  const form = h(
    "form",
    { class: "filter", role: "search", "aria-label": say("history") },
    Object.entries(all).map(([name, control]) => field(name, control)),
    ticks.map((box) => h("label", { class: "inline" }, box, named(box.id))),
    h("button", { type: "submit" }, say("find")),
  ); // prettier-ignore
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    show();
  });
  span.addEventListener("change", () => (day.value = ""));
  by.addEventListener("change", () => trying(showCounts));
  const save = (kind) => h("button", { type: "button", onclick: () => trying(() => download(kind)) }, kind.toUpperCase());
  const columns = ["time", "model", "label", "sure", "quality_of", "took", "verdict", "request_id"].map((name) => say(name));
  const table = (name, columns, body) => tableBox(say(name), heads(columns), body, "wide scroll");
  const one = card("one", say("request"), h("div", {}, h("p", { class: "quiet" }, say("choose_one"))));
  one.setAttribute("aria-live", "polite");
  find("page").append(
    form,
    said,
    card("outcomes", say("outcomes"), table("outcomes", columns, rows), h("p", { class: "filter" }, more, say("take_away"), ["csv", "ndjson", "parquet"].map(save))),
    one,
    card("counts", say("counts"), h("div", { class: "filter" }, field("count_by", by)), table("counts", ["value", "count", "part_of"].map((name) => say(name)), counts)),
    h("section", { class: "card", id: "over-time" }, overTime.element, h("p", { class: "quiet" }, say("rolled_up"))),
  );
}

/** Does it, and says what went wrong. */
async function trying(what) {
  try {
    await what();
    note.hidden = true;
  } catch (error) {
    if (error.status === 401 || error.status === 403) {
      find("page").hidden = true;
      note.after(passForm(error.message, show));
      return;
    }
    note.hidden = false;
    note.textContent = error.message;
  }
}

const show = () =>
  trying(async () => {
    await Promise.all([know(), list(false)]);
    find("page").hidden = false;
    await Promise.all([showCounts(), draw()]);
    document.documentElement.dataset.state = "shown";
  });

async function list(goesOn) {
  const skip = goesOn ? rows.rows.length : 0;
  const { outcomes } = await read(`/v1/history?${filter({ order: order.value, most: SHOWN, skip })}`);
  if (!goesOn) rows.replaceChildren();
  rows.append(...outcomes.map(row));
  more.hidden = outcomes.length < SHOWN;
  said.textContent = say("found", { count: rows.rows.length + (more.hidden ? "" : "+") });
}

/** Pictures are fetched when they come into sight. */
const seen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    seen.unobserve(target);
    pictureOf(target.outcome).then((picture) => picture && target.prepend(picture));
  }
});

function row(outcome) {
  const open = h("button", { type: "button", class: "plain", onclick: () => showOne(outcome, find("one").lastChild, show) }, outcome.request);
  const sure = outcome.confidence === null ? "" : `${Math.round(100 * outcome.confidence)} %`;
  const cells = [outcome.model, outcome.label, sure, qualityOf(outcome), ms(outcome.ms), outcome.verdict && say(outcome.verdict)];
  const first = h("th", { scope: "row" }, when.format(outcome.at * 1000));
  first.outcome = outcome;
  if (outcome.kept) seen.observe(first);
  return h("tr", {}, first, cells.map((text) => h("td", {}, text ?? "")), h("td", {}, open));
}

async function showCounts() {
  const { counts: found } = await read(`/v1/history/counts?${filter({ by: by.value, zone: -new Date().getTimezoneOffset() })}`);
  const total = found.reduce((sum, [, count]) => sum + count, 0) || 1;
  const field = { ...fields, day }[by.value];
  const only = (name) => {
    field.value = name;
    show();
  };
  const shown = (name) => (name ? h("button", { type: "button", class: "plain", onclick: () => only(name) }, name) : say("none"));
  counts.replaceChildren(...found.slice(0, 200).map(([name, count]) => h("tr", {}, h("th", { scope: "row" }, shown(name)), h("td", {}, String(count)), h("td", {}, `${Math.round((1000 * count) / total) / 10} %`))));
}

async function draw() {
  const now = Date.now() / 1000;
  const [first, until] = period();
  const since = first || now - 300 * STEPS.at(-1);
  const end = until || now;
  const step = STEPS.find((one) => (end - since) / one <= 300);
  const wanted = [...filter()].filter(([name]) => ROLLED_UP.includes(name));
  const { minutes } = await read(`/v1/history/minutes?${new URLSearchParams([...wanted, ["since", since], ["until", end], ["step", step]])}`);
  const from = Math.floor((first || (minutes[0]?.at ?? now)) / step) * step;
  const at = Array.from({ length: Math.ceil((end - from) / step) }, (_, place) => from + place * step);
  const sums = new Map(minutes.map((one) => [one.at, one]));
  rate = (name, place) => ((sums.get(at[place])?.[name] ?? 0) * 60) / step;
  overTime.draw(at, [], from);
}

async function download(kind) {
  const answer = await look(`/v1/history/export?${filter({ format: kind })}`);
  if (!answer.ok) throw Object.assign(new Error((await answer.json()).detail), { status: answer.status });
  const url = URL.createObjectURL(await answer.blob());
  h("a", { href: url, download: `history.${kind}` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const LARGEST = 1e7; // bytes of a picture
let models = []; // of /v1/models, to know which take pictures

/** Learns which models take pictures. */
async function know() {
  models = (await look("/v1/models").then((answer) => answer.json()).catch(() => ({}))).models ?? [];
}

const qualityOf = (outcome) => outcome.code || (isKnown(outcome.quality) ? say(outcome.quality) : outcome.quality);

const modelOf = ({ model }) => models.find(({ name }) => name === model);
const fieldOf = (outcome) => pictureField(modelOf(outcome)?.request_schema);
const takesPictures = (outcome) => fieldOf(outcome) || modelOf(outcome)?.accepts?.some((media) => media.startsWith("image/"));

/** What was sent, as a small picture; null if it is none. */
async function pictureOf(outcome, side) {
  if (!takesPictures(outcome)) return null;
  const sent = await kept(outcome, "input");
  return sent && drawn(outcome, sent, side);
}

async function drawn(outcome, sent, side) {
  const field = fieldOf(outcome);
  if (!takesPictures(outcome) || sent.size > LARGEST) return null;
  const base64 = field ? (JSON.parse((await sent.text()) || "{}")[field] ?? "") : await encode(sent);
  return thumbnail(base64, side);
}

async function kept(outcome, which) {
  const answer = await look(`/v1/history/${outcome.place}/${which}`);
  return answer.ok ? answer.blob() : null;
}

/** A body as text, long texts in it cut short; its size if it is none. */
async function shown(blob) {
  if (!blob) return say("not_kept");
  const text = blob.size > LARGEST ? "\0" : await blob.text();
  if (/[\0\ufffd]/.test(text)) return bytes(blob.size);
  return text.replace(/"[^"\\]{80,}"/g, (long) => `"${long.slice(1, 40)}…" (${bytes(long.length - 2)})`).slice(0, 100_000);
}

/** Shows one in `box`; `changed()` is called when it was judged. */
async function showOne(outcome, box, changed) {
  const [sent, answered] = outcome.kept ? await Promise.all([kept(outcome, "input"), kept(outcome, "answer")]) : [];
  const said = h("p", { class: "quiet", role: "status" });
  const result = h("pre", { class: "body", hidden: true });
  const buttons = [];
  if (outcome.key && !outcome.code) {
    const right = h("input", { id: "right-label", autocomplete: "off", value: outcome.right_label || outcome.label || "" });
    const judge = (word) => h("button", { type: "button", onclick: () => tell(outcome, word, right.value, said, changed) }, say(word));
    buttons.push(judge("right"), judge("wrong"), h("label", {}, say("right_label"), right));
  }
  if (sent) buttons.push(h("button", { type: "button", onclick: () => again(outcome, result) }, say("replay")));
  box.replaceChildren(
    facts([
      [say("request_id"), outcome.request], [say("key"), outcome.key], [say("model"), `${outcome.model} ${outcome.version}`], [say("label"), outcome.label],
      [say("quality_of"), qualityOf(outcome)], [say("why"), outcome.reason], [say("took"), `${ms(outcome.ms)} / ${ms(outcome.limit_ms)}`],
      [say("batch"), outcome.batch === null ? "" : `${outcome.batch} (${outcome.size})`], [say("user"), outcome.user], [say("votes"), outcome.votes],
    ]), // prettier-ignore
    h("div", { class: "filter" }, buttons), said,
    h("h3", {}, say("sent")), (sent && (await drawn(outcome, sent, 160).catch(() => null))) ?? "", h("pre", { class: "body" }, await shown(sent)),
    h("h3", {}, say("answered")), h("pre", { class: "body" }, await shown(answered)),
    result,
  ); // prettier-ignore
  box.scrollIntoView({ block: "nearest" });
}

async function tell(outcome, verdict, label, said, changed) {
  const path = `/v1/feedback/${encodeURIComponent(outcome.model)}/${encodeURIComponent(outcome.key)}`;
  const answer = await look(path, { method: "POST", body: JSON.stringify({ verdict, label: verdict === "wrong" ? label : "" }) });
  said.textContent = answer.ok ? say("noted") : `${say("not_noted")} ${(await answer.json()).detail}`;
  if (answer.ok) setTimeout(changed, 600);
}

async function again(outcome, result) {
  const answer = await look(`/v1/history/${outcome.place}/again`, { method: "POST" });
  const text = answer.ok ? await shown(await answer.blob()) : (await answer.json()).detail;
  result.hidden = false;
  result.textContent = `${say("replayed")} ${answer.status}\n${text}`;
}

takePass();
build();
show();
