// Charts over time: uPlot draws, a table beside each says the same.

import { h, heads, tableBox } from "./dom.js";
import { language, say } from "./words.js";

const ROWS = 12;
const clock = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

/** 12:34:56, of seconds since 1970. */
export const timeOf = (seconds) => clock.format(new Date(seconds * 1000));

/** Colours as the style sheet has them now: they change with the scheme. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A chart: `lines` gives [column, title, colour, dashes], none if there is nothing to show now; `read(column, place)` gives a value; `show` makes it text. */
export function chart(title, named, { read, show, top = null }) {
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
      { stroke: colour("--quiet"), grid: { show: false }, ticks: { show: false }, size: 26, space: 70, values: (_, all) => all.map((at) => clock.format(new Date(at * 1000)).slice(0, 5)) },
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
      rows.push(h("tr", {}, h("th", { scope: "row" }, timeOf(at[place])), columns.map((column) => h("td", {}, show(column[place])))));
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
