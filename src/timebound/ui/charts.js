// Charts over time, and batches on their slots: what is drawn, with a table beside it that says the same.

import { card, h, heads, tableBox } from "./dom.js";
import { ms } from "./sentences.js";
import { look } from "./stream.js";
import { isKnown, language, say } from "./words.js";

const ROWS = 12;
const clock = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

/** 12:34:56, of seconds since 1970. */
export const timeOf = (seconds) => clock.format(new Date(seconds * 1000));

/** Colours as the style sheet has them now: they change with the scheme. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A chart: `lines` gives [column, title, colour, dashes], none if there is nothing to show now; `read(column, place)` gives a value; `show` makes it text, `time` the time. */
export function chart(title, named, { read, show, top = null, time = timeOf }) {
  let lines = null;
  const box = h("div", { class: "plot", role: "img" });
  const legend = h("p", { class: "legend quiet" });
  const body = h("tbody");
  const head = h("tr");
  const table = h(
    "details",
    {},
    h("summary", {}, say("table")),
    tableBox(title, head, body),
  );
  const element = h("figure", { class: "chart" }, h("h3", {}, title), box, legend, table);
  let plot = null;
  let last = null;

  const choose = () => {
    const wanted = named();
    if (wanted.join() === lines?.join()) return;
    lines = wanted;
    forget();
    element.hidden = !lines.length;
    head.replaceChildren(...heads([say("time"), ...lines.map(([, name]) => name)]).children);
  };
  const draw = (at, marks, from) => {
    choose();
    const columns = lines.map(([column]) => at.map((_, place) => read(column, place)));
    last = { at, columns };
    const width = Math.floor(box.clientWidth);
    if (!width) return;
    const range = { min: from, max: Math.max(at.at(-1) ?? from + 1, from + 1) };
    if (!plot) plot = new uPlot(options(width, marks), [at, ...columns], box);
    else {
      if (plot.width !== width) plot.setSize({ width, height: 140 });
      plot.marks = marks;
      plot.setData([at, ...columns], false);
    }
    plot.setScale("x", range);
    const now = columns.map((column) => column.at(-1));
    const words = lines.map(([, name], n) => `${name} ${show(now[n])}`);
    box.setAttribute("aria-label", `${title}: ${words.join(", ")}`);
    legend.replaceChildren(
      ...lines.map(([, name, ink], n) => {
        const key = h("i", { class: "key" });
        key.style.setProperty("background", `var(${ink})`);
        return h("span", {}, key, `${name} `, h("b", {}, show(now[n])));
      }),
    );
    if (table.open) fill();
  };

  const options = (width, marks) => ({
    width,
    height: 140,
    legend: { show: false },
    cursor: { show: false },
    padding: [8, 8, 0, 0],
    scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(top ?? 0, (high || 1) * 1.1)] } },
    axes: [
      { stroke: colour("--quiet"), grid: { show: false }, ticks: { show: false }, size: 26, space: 70, values: (_, all) => all.map((at) => time(at).replace(/(:..):..$/, "$1")) },
      { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, size: 56, values: (_, all) => all.map(show) },
    ],
    series: [{}, ...lines.map(([, label, ink, dash]) => ({ label, stroke: colour(ink), width: 1.5, dash, points: { show: false } }))],
    hooks: {
      init: [(made) => void (made.marks = marks)],
      draw: [
        (made) => {
          const { ctx, bbox } = made;
          ctx.save();
          ctx.strokeStyle = colour("--quiet");
          ctx.setLineDash([3, 3]);
          for (const { at } of made.marks ?? []) {
            const x = made.valToPos(at, "x", true);
            if (x < bbox.left || x > bbox.left + bbox.width) continue;
            ctx.beginPath();
            ctx.moveTo(x, bbox.top);
            ctx.lineTo(x, bbox.top + bbox.height);
            ctx.stroke();
          }
          ctx.restore();
        },
      ],
    },
  });

  const fill = () => {
    const { at, columns } = last ?? { at: [], columns: [] };
    const step = Math.max(1, Math.floor(at.length / ROWS));
    const rows = [];
    for (let place = at.length - 1; place >= 0 && rows.length < ROWS; place -= step) {
      rows.push(h("tr", {}, h("th", { scope: "row" }, time(at[place])), columns.map((column) => h("td", {}, show(column[place])))));
    }
    body.replaceChildren(...rows);
  };
  table.addEventListener("toggle", fill);
  const forget = () => {
    plot?.destroy();
    plot = null;
  };
  return { element, draw, forget };
}

const KEPT = 3000;
const ROW = 26;
const LISTED = 30;

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
      ...batches.slice(0, LISTED).map((one) =>
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
