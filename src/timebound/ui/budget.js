// One request's budget: where its time went, as a bar and as a table.

import { card, h, heads, tableBox } from "./dom.js";
import { ms } from "./sentences.js";
import { read } from "./stream.js";
import { isKnown, say } from "./words.js";

const INK = { queue: "--queue", waiting: "--queue", prepare: "--prepare", infer: "--infer", finish: "--finish", way: "--way", left: "--sunken", margin: "--warn-back" };

const nameOf = (part) => {
  const [, n] = /^member (\d+)$/.exec(part) ?? [];
  if (n) return say("part_member", { n });
  return isKnown(`part_${part}`) ? say(`part_${part}`) : part;
};

/** The section; `show(id)` fills it. */
export function requestBox() {
  const box = h("div", { "aria-live": "polite" }, h("p", { class: "quiet" }, say("enter_id")));
  const element = card("request", say("request"), box);
  const show = async (id) => {
    try {
      box.replaceChildren(...drawn(await read(`/v1/live/requests/${encodeURIComponent(id)}`)));
    } catch (error) {
      box.replaceChildren(h("p", { class: "quiet" }, error.status === 404 ? say("no_request") : error.message));
    }
    element.scrollIntoView({ block: "nearest" });
  };
  return { element, show };
}

function drawn(found) {
  const { total_ms: total, deadline_ms: deadline, margin_ms: margin } = found;
  const whole = Math.max(total, deadline ?? 0) || 1;
  const left = Math.max(0, (deadline ?? total) - total);
  const kept = Math.min(left, margin ?? 0);
  const parts = [...found.parts.filter(({ ms: took }) => took > 0), { part: "left", ms: left - kept }, { part: "margin", ms: kept }];
  const outcome = isKnown(found.outcome) ? say(found.outcome) : found.outcome;
  const said = [
    say("budget_of", { outcome, total: ms(total) }),
    deadline !== null && say("budget_deadline", { deadline: ms(deadline) }),
    found.predicted_ms !== null && say("budget_predicted", { predicted: ms(found.predicted_ms) }),
    found.batch !== null && `${say("batch")} ${found.batch}, ${found.slot}`,
  ].filter(Boolean);
  const bar = h("div", { class: "bar", role: "img", "aria-label": parts.map(({ part, ms: took }) => `${nameOf(part)} ${ms(took)}`).join(", ") });
  for (const [n, { part, ms: took }] of parts.entries()) {
    if (took <= 0) continue;
    const piece = h("span", { "data-part": part, "data-ms": took, title: `${nameOf(part)}: ${ms(took)}` });
    piece.style.setProperty("width", `${(100 * took) / whole}%`);
    piece.style.setProperty("background", `var(${INK[part] ?? ["--infer", "--prepare", "--finish"][n % 3]})`);
    bar.append(piece);
  }
  const lanes = (found.beside ?? []).map(({ part, from_ms: from, ms: took }) => {
    const lane = h("span", { class: "lane", "data-part": part, "data-ms": took, title: `${nameOf(part)}: ${ms(took)}` });
    lane.style.setProperty("margin-left", `${(100 * from) / whole}%`);
    lane.style.setProperty("width", `${(100 * took) / whole}%`);
    return lane;
  });
  const beside = (found.beside ?? []).map(({ part, ms: took }) => ({ part, ms: took, isBeside: true }));
  const rows = parts.concat(beside).map(({ part, ms: took, isBeside }) => h("tr", {}, h("th", { scope: "row" }, nameOf(part) + (isBeside ? say("part_beside") : "")), h("td", {}, ms(took)), h("td", {}, `${Math.round((100 * took) / whole)} %`)));
  const head = heads([say("part"), say("took"), say("share_of")]);
  return [
    h("p", {}, h("code", {}, found.request), ` ${found.model}`),
    h("p", {}, said.join(", ")),
    bar,
    ...(lanes.length ? [h("div", { "aria-hidden": "true" }, lanes), h("p", { class: "quiet" }, say("beside", { count: lanes.length }))] : []),
    tableBox(say("request"), head, h("tbody", {}, rows), "wide parts"),
  ];
}
