// The live page: ten minutes of the past, then a message a second.

import { requestBox } from "./budget.js";
import { chart, timeOf, timeline } from "./charts.js";
import { decisionLog } from "./decisions.js";
import { bytes, card, duration, h, heads, tableBox } from "./dom.js";
import { showNav } from "./nav.js";
import { ms } from "./sentences.js";
import { follow, passForm, read, takePass } from "./stream.js";
import { driftPanel, versionsPanel } from "./versions.js";
import { say } from "./words.js";

const KEPT = 600;
const MARKS = 256;
const AGAIN_MS = 2000;
const find = (id) => document.getElementById(id);

const state = { at: [], columns: {}, marks: [], deadlines: {}, models: [], model: "", shown_s: 600, isPaused: false, slots: [], workers: [] };
const number = (value) => (value === null || value === undefined || Number.isNaN(value) ? "–" : String(Number(value.toPrecision(3))));
const percent = (value) => (value === null || value === undefined ? "–" : `${Number((100 * value).toPrecision(4))} %`);
const megabytes = (mb) => (mb === null ? "–" : bytes(mb * 1e6));
const value = (column, place) => state.columns[column]?.[place] ?? null;
const ratio = (over, under, place) => {
  const below = value(under, place);
  return below ? value(over, place) / below : null;
};
const deadline = () => (state.model ? state.deadlines[state.model] : Math.max(0, ...Object.values(state.deadlines))) || null;
const special = {
  share: (place) => ratio("in_time", "due", place),
  batch: (place) => ratio("items", "batches", place),
  deadline: () => deadline(),
};
const at = (column, place) => (special[column] ? special[column](place) : value(column, place));
const INKS = ["--bad", "--warn", "--finish", "--prepare", "--accent", "--infer", "--queue", "--quiet"];
/** A line for each column of this form, of which the page only learns from the server; `[, name]` of the form is its title. */
const columns = (form, isWanted = () => true) =>
  Object.keys(state.columns)
    .map((name) => form.exec(name))
    .filter(Boolean)
    .map(([column, name], n) => [column, name === "other" ? say("other") : name, INKS[n % 8], n < 8 ? [] : [5, 3]])
    .filter(([column]) => isWanted(state.columns[column]));
const refusals = () => columns(/^code_(.*)/, (counts) => counts.some(Boolean));

const charts = [
  ["requests", [["asked", say("asked"), "--prepare"], ["in_time", say("in_time"), "--infer"]], number],
  ["share", [["share", say("share_line"), "--infer"]], percent, 1],
  ["latency", [["p50_ms", say("p50"), "--infer"], ["p95_ms", say("p95"), "--prepare"], ["p99_ms", say("p99"), "--finish"], ["deadline", say("deadline"), "--bad"]], ms],
  ["queue", [["queue_s", say("queue_line"), "--finish"]], (s) => (s === null ? "–" : duration(s)), 0.1],
  ["batch_size", [["batch", say("batch_line"), "--prepare"]], number, 2],
  ["quality", [["full", say("full"), "--infer"], ["partial", say("partial"), "--finish"], ["fallback", say("fallback"), "--bad"]], number],
  ["source", [["computed", say("computed"), "--prepare"], ["joined", say("joined"), "--finish"], ["stored", say("stored"), "--infer"]], number],
  ["refusals", () => (refusals().length ? refusals() : [["refused", say("none"), "--quiet"]]), number],
  ["load", [["load", say("load_line"), "--bad"], ["utilisation", say("utilisation"), "--infer"]], percent, 1],
  ["cores", [["gateway_cpu", say("gateway"), "--prepare"], ["worker_cpu", say("workers_line"), "--infer"]], number, 1],
  ["memory", [["memory_mb", say("memory_line"), "--prepare"]], megabytes],
  ["gpus", () => columns(/^gpu_(.*)_busy/), percent, 1],
  ["gpu_memory", () => columns(/^gpu_(.*)_mb/), megabytes],
].map(([name, lines, show, top]) => chart(say(name), typeof lines === "function" ? lines : () => lines, { read: at, show, top })); // prettier-ignore

const tiles = h("dl", { class: "tiles", "aria-label": say("now") });
const pickModel = h("select", { id: "model" });
const pickWindow = h("select", { id: "window" }, h("option", { value: "600" }, say("ten_minutes")), h("option", { value: "60" }, say("minute")));
const pause = h("button", { type: "button", "aria-pressed": "false" }, say("pause"));
const workers = h("tbody");
const marks = h("ol", { class: "log" });
const lanes = timeline();
const drift = driftPanel();
const versions = versionsPanel();
const request = requestBox();
const log = decisionLog((id) => request.show(id));

function build() {
  showNav("/live", say("live"));
  const columns = [say("worker"), say("state"), say("slots"), say("cpu"), say("memory"), say("items"), "pid"];
  find("page").append(
    tiles,
    h("form", { class: "filter", "aria-label": say("controls"), onsubmit: (event) => event.preventDefault() }, h("label", {}, say("model"), pickModel), h("label", {}, say("window"), pickWindow), pause),
    h("h2", {}, say("past")),
    h("div", { class: "charts" }, charts.map(({ element }) => element)),
    lanes.element,
    card("workers", say("workers"), tableBox(say("workers"), heads(columns), workers)),
    log.element,
    request.element,
    versions.element,
    drift.element,
    card("marks", say("marks"), marks),
  );
}

function draw() {
  const now = state.at.at(-1) ?? Date.now() / 1000;
  // A server that is young has little past: it gets the whole width, but never less than a minute of it.
  const from = Math.max(now - state.shown_s, Math.min(state.at[0] ?? now, now - 60));
  for (const each of charts) each.draw(state.at, state.marks, from);
  lanes.draw(state.slots, now);
}

function showTiles() {
  const last = state.at.length - 1;
  const limit = deadline();
  const pairs = [
    [number(value("asked", last)), say("tile_rate")],
    [percent(special.share(last)), say("tile_share")],
    [ms(value("p95_ms", last)), `${say("tile_p95")}${limit ? `, ${say("of_deadline", { deadline: ms(limit) })}` : ""}`],
    [number(special.batch(last)), say("tile_batch")],
    ...(state.model ? [] : [[duration(value("queue_s", last) ?? 0), say("tile_queue")], [percent(value("load", last)), say("tile_load")]]),
  ]; // prettier-ignore
  tiles.replaceChildren(...pairs.map(([figure, name]) => h("div", {}, h("dt", {}, name), h("dd", {}, figure))));
}

function showWorkers() {
  const now = state.at.at(-1) ?? 0;
  const doing = (worker) =>
    state.slots
      .filter(({ slot }) => slot.startsWith(`slot ${worker.worker}.`))
      .map((slot) => (slot.since ? say("busy", { ...slot, ms: ms((now - slot.since) * 1000) }) : say("idle")))
      .join("; ");
  workers.replaceChildren(
    ...state.workers.map((one) => {
      const name = one.is_understudy ? say("understudy") : one.role === "fetcher" ? say("fetcher") : one.is_leaving ? say("is_leaving") : one.is_up ? say("is_up") : say("is_loading");
      return h("tr", {}, h("th", { scope: "row" }, String(one.worker)), [name, doing(one), number(one.cores), bytes(one.memory_bytes), String(one.requests), String(one.pid)].map((text) => h("td", {}, text)));
    }),
  );
  const up = state.workers.filter((one) => one.is_up && !one.is_understudy && one.role !== "fetcher").length;
  find("server").textContent = say("version_up", { workers: up, slots: state.slots.length });
}

function showMarks() {
  const rows = state.marks.slice(0, 50);
  marks.replaceChildren(...rows.map((mark) => h("li", {}, h("time", { class: "quiet" }, timeOf(mark.at)), h("span", {}, say(`mark_${mark.kind}`, mark)))));
  if (!rows.length) marks.replaceChildren(h("li", { class: "quiet" }, say("no_marks")));
}

function showModels() {
  const wanted = ["", ...state.models];
  if ([...pickModel.options].map((one) => one.value).join() === wanted.join()) return;
  pickModel.replaceChildren(...wanted.map((name) => h("option", { value: name, selected: name === state.model }, name || say("all_models"))));
}

async function fetchPast() {
  const found = await read(`/v1/live/past?model=${encodeURIComponent(state.model)}`);
  Object.assign(state, { at: found.at, columns: found.columns, marks: found.marks, deadlines: found.deadlines_ms, models: found.models, slots: found.slots, workers: found.workers });
  lanes.add(found.batches);
}

function show() {
  showModels();
  showTiles();
  showWorkers();
  showMarks();
  draw();
}

function told(second) {
  const row = state.model ? second.models[state.model] : second.all;
  state.at.push(second.at);
  for (const [name, column] of Object.entries(state.columns)) column.push(row?.[name] ?? null);
  if (state.at.length > KEPT) for (const column of [state.at, ...Object.values(state.columns)]) column.shift();
  state.marks = [...second.marks, ...state.marks].slice(0, MARKS);
  state.models = Object.keys(second.models).sort();
  Object.assign(state, { slots: second.slots, workers: second.workers });
  lanes.add(second.batches);
  if (state.isPaused || document.hidden) return;
  Promise.all([drift, versions].map((panel) => panel.refresh(state.model))).catch(() => {});
  log.add([...second.decisions, ...second.batches.map((batch) => ({ kind: "batch", ...batch }))]);
  show();
}

/** Resolves when somebody looks at this tab: a hidden one keeps no connection, of which a browser has few per server. */
const seen = () =>
  document.hidden ? new Promise((go) => document.addEventListener("visibilitychange", go, { once: true })) : null;

async function open() {
  for (;;) {
    await seen();
    const leaving = new AbortController();
    const leave = () => leaving.abort();
    const hide = () => document.hidden && leave();
    addEventListener("pagehide", leave);
    document.addEventListener("visibilitychange", hide);
    try {
      await fetchPast();
      find("page").hidden = false;
      find("notice").hidden = true;
      show();
      await Promise.all([log.find(), drift.refresh(state.model), versions.refresh(state.model)]);
      document.documentElement.dataset.state = "live";
      performance.mark("live");
      await follow("/v1/live", told, leaving.signal);
    } catch (error) {
      if (leaving.signal.aborted) continue;
      if (error.status === 401 || error.status === 403) {
        find("page").hidden = true;
        find("notice").after(passForm(error.message, open));
        return;
      }
    } finally {
      removeEventListener("pagehide", leave);
      document.removeEventListener("visibilitychange", hide);
    }
    find("notice").hidden = false;
    find("notice").textContent = say("gone");
    await new Promise((go) => setTimeout(go, AGAIN_MS));
  }
}

pickModel.addEventListener("change", async () => {
  state.model = pickModel.value;
  await fetchPast();
  await Promise.all([log.ofModel(state.model), drift.refresh(state.model)]);
  show();
});
pickWindow.addEventListener("change", () => {
  state.shown_s = Number(pickWindow.value);
  draw();
});
pause.addEventListener("click", async () => {
  state.isPaused = !state.isPaused;
  pause.setAttribute("aria-pressed", String(state.isPaused));
  pause.textContent = say(state.isPaused ? "go_on" : "pause");
  if (!state.isPaused) await Promise.all([fetchPast(), log.find()]).then(show, () => {}); // what came meanwhile
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const each of charts) each.forget();
  draw();
});
addEventListener("resize", draw);
takePass();
build();
open();
