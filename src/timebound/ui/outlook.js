// What who sends now would get, by the server's present queue: told with /v1/models, for one member, two, all.

import { duration, h } from "./dom.js";

/** A line; `update(model)` shows what the server says now, `limit_ms()` is how long an answer may take. */
export function outlookView(limit_ms) {
  let now = null;
  const words = h("span", {});
  const dot = h("i", { class: "dot", "aria-hidden": "true" });
  const element = h("p", { class: "outlook quiet", hidden: true }, dot, "Sent now: ", words);
  const show = () => {
    element.hidden = !now?.sent_now_ms?.length;
    if (element.hidden) return;
    const { quality, said } = outlook(now, limit_ms());
    element.dataset.quality = quality;
    if (words.textContent !== said) words.textContent = said;
  };
  const update = (model) => {
    now = model;
    show();
  };
  return { element, show, update };
}

function outlook({ sent_now_ms: times, margin_ms, has_fallback }, limit_ms) {
  const fitting = times.filter((ms) => ms + margin_ms <= limit_ms).length;
  const about = (ms) => `in about ${duration(ms / 1000)}`;
  if (fitting === times.length) return { quality: "full", said: `a full answer, ${about(times.at(-1))}` };
  if (fitting)
    return { quality: "partial", said: `a partial answer, ${fitting} of ${times.length} members, ${about(times[fitting - 1])}` };
  const why = `the model would take about ${duration(times[0] / 1000)}`;
  return has_fallback ? { quality: "fallback", said: `the fallback; ${why}` } : { quality: "refused", said: `refused; ${why}` };
}
