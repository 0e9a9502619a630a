// Batches on each slot, the last seconds of them: a drawing, a table, and a file for Chrome's trace viewer.

import { colour, timeOf } from "./charts.js";
import { card, h, heads, tableBox } from "./dom.js";
import { ms } from "./sentences.js";
import { look } from "./stream.js";
import { isKnown, say } from "./words.js";

const KEPT = 3000;
const ROW = 26;
const ROWS = 30;

/** The section; `add(batches)` and `draw(slots, now)` keep it up. */
export function timeline() {
  const canvas = h("canvas", { role: "img" });
  const names = h("div", { class: "names", "aria-hidden": "true" });
  const seconds = h("select", { id: "seconds" }, [2, 10, 30, 120].map((value) => h("option", { value: String(value), selected: value === 10 }, String(value))));
  const body = h("tbody");
  const head = heads(["time", "slot", "model", "batch", "size", "took", "predicted", "why"].map((key) => say(key)));
  const table = h(
    "details",
    {},
    h("summary", {}, say("table")),
    tableBox(say("timeline"), head, body),
  );
  const save = h("button", { type: "button", onclick: () => download() }, say("download"));
  const element = card(
    "timeline",
    say("timeline"),
    h("div", { class: "filter" }, h("label", {}, say("seconds_shown"), seconds), save),
    h("div", { class: "lanes" }, names, h("div", {}, canvas)),
    table,
  );
  let batches = [];

  const add = (more) => {
    batches = [...more, ...batches].sort((one, other) => other.started - one.started).slice(0, KEPT);
  };
  const draw = (slots, now) => {
    const shown_s = Number(seconds.value);
    const lanes = slots.map(({ slot }) => slot);
    if (names.textContent !== lanes.join("")) names.replaceChildren(...lanes.map((name) => h("span", {}, name)));
    canvas.setAttribute("aria-label", say("timeline_label", { seconds: shown_s, slots: lanes.length }));
    const ratio = devicePixelRatio || 1;
    const width = canvas.parentElement.clientWidth;
    const height = Math.max(1, lanes.length) * ROW;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.setProperty("width", `${width}px`);
    canvas.style.setProperty("height", `${height}px`);
    const ink = canvas.getContext("2d");
    ink.scale(ratio, ratio);
    ink.font = "11px system-ui, sans-serif";
    const x = (at) => ((at - (now - shown_s)) / shown_s) * width;
    lanes.forEach((_, row) => {
      ink.fillStyle = colour("--sunken");
      ink.fillRect(0, row * ROW + 2, width, ROW - 4);
    });
    const paint = (slot, from, to, size, isOver, end) => {
      const row = lanes.indexOf(slot);
      if (row < 0 || to < now - shown_s) return;
      const left = Math.max(0, x(from));
      const wide = Math.max(1, x(to) - left);
      ink.fillStyle = colour(isKnown(`end_${end}`) ? "--finish" : isOver ? "--infer" : "--prepare");
      ink.fillRect(left, row * ROW + 3, Math.max(0.5, wide - 0.5), ROW - 6);
      if (wide < 18) return;
      ink.fillStyle = colour("--on-bar");
      ink.fillText(String(size), left + 4, row * ROW + 17);
    };
    for (const one of batches) paint(one.slot, one.started, one.started + one.ms / 1000, one.size, true, one.end);
    for (const { slot, since, size } of slots) if (since) paint(slot, since, now, size, false);
    if (table.open) fill();
  };
  const fill = () =>
    body.replaceChildren(
      ...batches.slice(0, ROWS).map((one) =>
        h(
          "tr",
          {},
          h("th", { scope: "row" }, timeOf(one.started)),
          [one.slot, one.model, one.batch, one.size, ms(one.ms), ms(one.predicted_ms), one.reason].map((value) => h("td", {}, String(value))),
        ),
      ),
    );
  table.addEventListener("toggle", fill);
  const download = async () => {
    const answer = await look("/v1/live/trace.json");
    const url = URL.createObjectURL(await answer.blob());
    h("a", { href: url, download: "timebound-batches.json" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  };
  return { element, add, draw };
}
