// Versions that share a model's requests, side by side, and whether models still say what they used to.

import { card, h, heads, tableBox } from "./dom.js";
import { ms } from "./sentences.js";
import { read } from "./stream.js";
import { say } from "./words.js";

const EVERY_MS = 5000;
const percent = (value) => `${Number((100 * value).toPrecision(3))} %`;
const plain = (value) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(3))));

/** The panel, hidden while no model has two versions; `refresh(model)` asks the server if that is due. */
export function versionsPanel() {
  const body = h("div");
  const element = card("versions", say("versions"), h("p", { class: "quiet" }, say("versions_are")), body);
  element.hidden = true;
  let asked = 0;

  const refresh = async (model) => {
    if (Date.now() - asked < EVERY_MS) return;
    asked = Date.now();
    const found = (await read("/v1/live/versions")).models.filter((one) => !model || one.model === model);
    element.hidden = !found.length;
    body.replaceChildren(...found.map(table));
  };
  return { element, refresh };
}

function table(one) {
  const columns = ["version", "share_of_all", "requests_count", "in_time", "took", "sure", "label"].map((name) => say(name));
  const rows = Object.entries(one.versions).map(([version, told]) => row(one, version, told));
  const copies = Object.entries(one.copies).map(([version, told]) =>
    h("p", {}, say("copies_are", { version, count: told.copies, same: told.same ? percent(told.same.value) : "–", label: told.same_label ? percent(told.same_label.value) : "–" })),
  );
  return h("div", {}, h("h3", {}, one.model), tableBox(one.model, heads(columns), h("tbody", {}, rows)), copies);
}

function row(one, version, told) {
  const off = one.differences[version] ?? {};
  const cells = [
    percent(one.shares[version]),
    String(told.requests),
    told.in_time ? `${percent(told.in_time.value)}${interval(off.in_time, percent)}` : "–",
    told.ms === null ? "–" : `${ms(told.ms)}${interval(off.time, percent)}`,
    told.confidence === null ? "–" : `${plain(told.confidence)}${interval(off.confidence, plain)}`,
    off.label ? `${off.label[0]}${interval(off.label[1], percent)}` : (told.labels[0]?.[0] ?? "–"),
  ];
  return h("tr", {}, h("th", { scope: "row" }, version), cells.map((text) => h("td", {}, text)));
}

function interval(off, show) {
  if (!off) return "";
  const bounds = say("from_to", { low: show(off.low), high: show(off.high) });
  return ` (${bounds}${off.low > 0 || off.high < 0 ? `, ${say("differs")}` : ""})`;
}

/** The panel; `refresh(model)` asks the server if that is due, or at once of another model. */
export function driftPanel() {
  const rows = h("tbody");
  const columns = ["model", "version", "signal", "state", "compared", "now_is", "usual", "psi"].map((name) => say(name));
  const element = card(
    "drift",
    say("drift"),
    h("p", { class: "quiet" }, say("drift_is")),
    tableBox(say("drift"), heads(columns), rows, "wide scroll"),
  );
  let asked = 0;
  let of = null;

  const refresh = async (model) => {
    if (model === of && Date.now() - asked < EVERY_MS) return;
    asked = Date.now();
    of = model;
    const { versions } = await read("/v1/live/drift");
    const wanted = versions.filter((one) => !model || one.model === model);
    const found = wanted.flatMap((one) => one.signals.map((signal) => signalRow(one, signal)));
    rows.replaceChildren(...(found.length ? found : [h("tr", {}, h("td", { colSpan: columns.length, class: "quiet" }, say("no_drift")))]));
  };
  return { element, refresh };
}

function signalRow(version, one) {
  const isLabel = one.signal === "label";
  const show = (value) => (isLabel && value !== undefined ? percent(value) : plain(value));
  const state = one.state === "learning" ? say("drift_learning", one) : say(version.is_paused ? "drift_paused" : `drift_${one.state}`);
  const now = one.what ? `${isLabel ? `${one.what} ` : ""}${show(one.now)}` : "–";
  const cells = [version.version, say(`signal_${one.signal}`), state, one.seen ?? 0, now, show(one.usual), plain(one.psi)];
  return h("tr", { "data-state": one.state }, h("th", { scope: "row" }, version.model), cells.map((text) => h("td", {}, String(text))));
}
