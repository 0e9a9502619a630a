// The history page: what was asked and answered, counted and listed; right or wrong; files to take away.

import { bytes, facts, h } from "./dom.js";
import { showNav } from "./nav.js";
import { ms } from "./sentences.js";
import { look, passForm, read, takePass } from "./stream.js";
import { isKnown, language, say } from "./words.js";

const find = (id) => document.getElementById(id);
const when = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "medium", hour12: false });
const BY = ["label", "user", "day", "model", "version", "quality", "source", "code", "verdict"];
const SPANS = { hour: 3600, day: 86_400, week: 604_800, ever: 0 };
const SHOWN = 100;

const input = (id, type = "search") => h("input", { id, type, autocomplete: "off", spellcheck: false });
const options = (id, pairs) => h("select", { id }, pairs.map(([value, text]) => h("option", { value }, text)));
const model = input("model");
const label = input("label");
const key = input("key");
const request = input("request");
const quality = options("quality", [["", say("any")], ...["full", "partial", "fallback"].map((one) => [one, say(one)])]);
const span = options("span", Object.keys(SPANS).map((one) => [one, say(`span_${one}`)]));
const verdict = options("verdict", [["", say("any")], ["right", say("right")], ["wrong", say("wrong")]]);
const order = options("order", [["newest", say("newest_first_order")], ["unsure", say("least_sure")]]);
const disagreed = h("input", { id: "disagreed", type: "checkbox" });
const by = options("by", BY.map((one) => [one, say(`by_${one}`)]));
span.value = "day";

const counts = h("tbody");
const rows = h("tbody");
const said = h("p", { class: "quiet", role: "status" });
const one = h("div", { "aria-live": "polite" }, h("p", { class: "quiet" }, say("choose_one")));
const note = find("notice");

const filter = () => {
  const given = { model: model.value, label: label.value, key: key.value, request: request.value, quality: quality.value, verdict: verdict.value };
  const query = new URLSearchParams(Object.entries(given).filter(([, text]) => text.trim()).map(([name, text]) => [name, text.trim()]));
  if (SPANS[span.value]) query.set("since", String(Math.floor(Date.now() / 1000) - SPANS[span.value]));
  if (disagreed.checked) query.set("disagreed", "1");
  return query;
};

function build() {
  showNav("/history", say("history"));
  const field = (name, control) => h("label", {}, say(name), control);
  const form = h(
    "form",
    { class: "filter", role: "search", "aria-label": say("history") },
    field("model", model), field("label", label), field("key", key), field("request_id", request), field("quality", quality),
    field("span", span), field("verdict", verdict), field("order", order),
    h("label", { class: "inline" }, disagreed, say("disagreed")),
    h("button", { type: "submit" }, say("find")),
  ); // prettier-ignore
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    show();
  });
  by.addEventListener("change", showCounts);
  const save = (format) => h("button", { type: "button", onclick: () => download(format) }, format.toUpperCase());
  const table = (name, columns, body) =>
    h("div", { class: "wide scroll", tabIndex: 0, role: "region", "aria-label": name }, h("table", {}, h("caption", { class: "unseen" }, name), h("thead", {}, h("tr", {}, columns.map((text) => h("th", { scope: "col" }, text)))), body));
  const columns = ["time", "model", "label", "sure", "quality_of", "took", "verdict", "request_id"].map((name) => say(name));
  find("page").append(
    form,
    said,
    h("section", { class: "card" }, h("h2", {}, say("outcomes")), table(say("outcomes"), columns, rows), h("p", { class: "filter" }, say("take_away"), ["csv", "ndjson", "parquet"].map(save))),
    h("section", { class: "card", id: "one" }, h("h2", {}, say("request")), one),
    h("section", { class: "card", id: "counts" }, h("h2", {}, say("counts")), h("div", { class: "filter" }, field("count_by", by)), table(say("counts"), [say("value"), say("count"), say("part_of")], counts)),
  );
}

async function show() {
  const query = filter();
  query.set("order", order.value);
  query.set("most", String(SHOWN));
  try {
    const { outcomes } = await read(`/v1/history?${query}`);
    rows.replaceChildren(...outcomes.map(row));
    said.textContent = say("found", { count: outcomes.length === SHOWN ? `${SHOWN}+` : outcomes.length });
    await showCounts();
    find("page").hidden = false;
    note.hidden = true;
    document.documentElement.dataset.state = "shown";
  } catch (error) {
    complain(error);
  }
}

function complain(error) {
  if (error.status === 401 || error.status === 403) {
    find("page").hidden = true;
    note.after(passForm(error.message, show));
    return;
  }
  note.hidden = false;
  note.textContent = error.message;
}

const qualityOf = (outcome) => outcome.code || (isKnown(outcome.quality) ? say(outcome.quality) : outcome.quality);

function row(outcome) {
  const open = h("button", { type: "button", class: "plain", onclick: () => showOne(outcome) }, outcome.request);
  const sure = outcome.confidence === null ? "" : `${Math.round(100 * outcome.confidence)} %`;
  const cells = [outcome.model, outcome.label, sure, qualityOf(outcome), ms(outcome.ms), outcome.verdict && say(outcome.verdict)];
  return h("tr", {}, h("th", { scope: "row" }, when.format(new Date(outcome.at * 1000))), cells.map((text) => h("td", {}, text ?? "")), h("td", {}, open));
}

async function showCounts() {
  const query = filter();
  query.set("by", by.value);
  try {
    const { counts: found } = await read(`/v1/history/counts?${query}`);
    const total = found.reduce((sum, [, count]) => sum + count, 0) || 1;
    counts.replaceChildren(...found.slice(0, 200).map(([name, count]) => h("tr", {}, h("th", { scope: "row" }, name || say("none")), h("td", {}, String(count)), h("td", {}, `${Math.round((1000 * count) / total) / 10} %`))));
  } catch (error) {
    complain(error);
  }
}

async function kept(outcome, which) {
  const answer = await look(`/v1/history/${outcome.place}/${which}`);
  return answer.ok ? answer.blob() : null;
}

const shown = async (blob) => {
  if (!blob) return say("not_kept");
  const text = blob.size > 100_000 ? null : await blob.text();
  return text === null || text.includes("\u0000") || text.includes("\ufffd") ? bytes(blob.size) : text;
};

async function showOne(outcome) {
  const [sent, answered] = outcome.kept ? [await kept(outcome, "input"), await kept(outcome, "answer")] : [null, null];
  const result = h("pre", { class: "body", hidden: true });
  const buttons = [];
  if (outcome.key && !outcome.code) {
    const right = input("right-label");
    right.value = outcome.right_label || outcome.label || "";
    const judge = (word) => h("button", { type: "button", onclick: () => say_so(outcome, word, right.value) }, say(word));
    buttons.push(judge("right"), judge("wrong"), h("label", {}, say("right_label"), right));
  }
  if (sent) buttons.push(h("button", { type: "button", onclick: () => replay(outcome, sent, result) }, say("replay")));
  one.replaceChildren(
    facts([
      [say("request_id"), outcome.request], [say("key"), outcome.key], [say("model"), `${outcome.model} ${outcome.version}`], [say("label"), outcome.label],
      [say("quality_of"), qualityOf(outcome)], [say("why"), outcome.reason], [say("took"), `${ms(outcome.ms)} / ${ms(outcome.limit_ms)}`],
      [say("batch"), outcome.batch === null ? "" : `${outcome.batch} (${outcome.size})`], [say("by_user"), outcome.user], [say("votes"), outcome.votes],
    ]), // prettier-ignore
    h("div", { class: "filter" }, buttons),
    h("h3", {}, say("sent")), h("pre", { class: "body" }, await shown(sent)),
    h("h3", {}, say("answered")), h("pre", { class: "body" }, await shown(answered)),
    result,
  ); // prettier-ignore
  find("one").scrollIntoView({ block: "nearest" });
}

async function say_so(outcome, word, right) {
  const path = `/v1/feedback/${encodeURIComponent(outcome.model)}/${encodeURIComponent(outcome.key)}`;
  const answer = await look(path, { method: "POST", body: JSON.stringify({ verdict: word, label: word === "wrong" ? right : "" }) });
  said.textContent = say(answer.ok ? "noted" : "not_noted");
  if (answer.ok) setTimeout(show, 600);
}

/** Under a key of its own: the old one stands for the answer that is there. */
async function withNewKey(outcome, sent) {
  const models = await look("/v1/models").then((answer) => answer.json()).catch(() => ({}));
  const field = models.models?.find(({ name }) => name === outcome.model)?.key;
  const body = field ? JSON.parse(await sent.text()) : null;
  if (!body || !(field in body)) return sent;
  return JSON.stringify({ ...body, [field]: `${body[field]}-${Date.now()}` });
}

async function replay(outcome, sent, result) {
  const body = await withNewKey(outcome, sent);
  const answer = await look(`/predictions/${encodeURIComponent(outcome.model)}`, { method: "POST", body, headers: { "Content-Type": "application/json" } });
  result.hidden = false;
  result.textContent = `${say("replayed")} ${answer.status}\n${await answer.text()}`;
}

async function download(format) {
  const query = filter();
  query.set("format", format);
  const answer = await look(`/v1/history/export?${query}`);
  if (!answer.ok) return complain(Object.assign(new Error((await answer.json()).detail), { status: answer.status }));
  const url = URL.createObjectURL(await answer.blob());
  h("a", { href: url, download: `history.${format}` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

takePass();
build();
show();
