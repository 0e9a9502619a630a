// The decision log: filtered here as it comes, and asked for anew when the filter changes.

import { timeOf } from "./charts.js";
import { card, h } from "./dom.js";
import { sentence } from "./sentences.js";
import { read } from "./stream.js";
import { say } from "./words.js";

const SHOWN = 100;
const KINDS = ["batch", "refused", "failed", "partial", "fallback", "joined", "stored", "late"];
const REASONS = [
  "overloaded", "queue_full", "deadline_unreachable", "too_late", "deadline_missed", "rate_limited", "client_busy", "memory_full", "guard", "backlog",
  "all_waiting", "best_rate", "split", "tight_deadline", "early_drop", "newest_first", "try_larger", "long_shot",
]; // prettier-ignore

/** The log; `chosen(id)` is called for a request that somebody wants to see. */
export function decisionLog(chosen) {
  const option = (value, text) => h("option", { value }, text);
  const reason = h(
    "select",
    { id: "reason" },
    option("", say("any")),
    KINDS.map((kind) => option(kind, say(`kind_${kind}`))),
    REASONS.map((code) => option(code, code)),
  );
  const id = h("input", { id: "request-id", type: "search", autocomplete: "off", spellcheck: false });
  const list = h("ol", { class: "log" });
  const empty = h("p", { class: "quiet" }, say("no_decisions"));
  const form = h(
    "form",
    { class: "filter", role: "search", "aria-label": say("decisions") },
    h("label", {}, say("reason"), reason),
    h("label", {}, say("request_id"), id),
    h("button", { type: "submit" }, say("find")),
  );
  const element = card(
    "decisions",
    say("decisions"),
    h("p", { class: "quiet" }, say("newest")),
    form,
    h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": say("decisions") }, list, empty),
  );
  let model = "";
  let asked = 0;

  const row = (made) => {
    const when = h("time", { class: "quiet" }, timeOf(made.at));
    const link = made.request && h("button", { type: "button", class: "plain", title: say("show_request"), onclick: () => chosen(made.request) }, made.request);
    return h("li", { "data-kind": made.kind }, when, h("span", {}, sentence(made)), link);
  };
  const isWanted = (made) =>
    (!reason.value || [made.reason, made.end, made.kind].includes(reason.value)) &&
    (!id.value.trim() || made.request === id.value.trim()) &&
    (!model || made.model.split("@")[0] === model);
  const showEmpty = () => void (empty.hidden = list.childElementCount > 0);

  const find = async () => {
    const turn = (asked += 1);
    const query = new URLSearchParams({ reason: reason.value, model, request: id.value.trim() });
    const { decisions } = await read(`/v1/live/decisions?${query}`);
    if (turn !== asked) return;
    list.replaceChildren(...decisions.slice(0, SHOWN).map(row));
    showEmpty();
  };
  const add = (made) => {
    const wanted = made.filter(isWanted).sort((one, other) => other.at - one.at);
    list.prepend(...wanted.slice(0, SHOWN).map(row));
    while (list.childElementCount > SHOWN) list.lastChild.remove();
    showEmpty();
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    find();
    if (id.value.trim()) chosen(id.value.trim());
  });
  reason.addEventListener("change", find);
  const ofModel = (name) => {
    model = name;
    return find();
  };
  return { element, add, find, ofModel };
}
