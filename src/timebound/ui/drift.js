// Whether models still say what they used to: a row for each signal, asked for every few seconds.

import { card, h, heads, tableBox } from "./dom.js";
import { read } from "./stream.js";
import { say } from "./words.js";

const EVERY_MS = 5000;
const short = (value) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(3))));
const percent = (value) => `${Number((100 * value).toPrecision(3))} %`;

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
    const found = wanted.flatMap((one) => one.signals.map((signal) => row(one, signal)));
    rows.replaceChildren(...(found.length ? found : [h("tr", {}, h("td", { colSpan: columns.length, class: "quiet" }, say("no_drift")))]));
  };
  return { element, refresh };
}

function row(version, one) {
  const isLabel = one.signal === "label";
  const show = (value) => (isLabel && value !== undefined ? percent(value) : short(value));
  const state = one.state === "learning" ? say("drift_learning", one) : say(version.is_paused ? "drift_paused" : `drift_${one.state}`);
  const now = one.what ? `${isLabel ? `${one.what} ` : ""}${show(one.now)}` : "–";
  const cells = [version.version, say(`signal_${one.signal}`), state, one.seen ?? 0, now, show(one.usual), short(one.psi)];
  return h("tr", { "data-state": one.state }, h("th", { scope: "row" }, version.model), cells.map((text) => h("td", {}, String(text))));
}
