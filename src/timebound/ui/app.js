// The front page: what is running, from /v1/models and /readyz, asked again every few seconds while visible.

import { callBox } from "./call.js";
import { duration, facts, h } from "./dom.js";

const EVERY_MS = 5000;
const cards = new Map(); // one per model name and version: { element, update, definition }
const find = (id) => document.getElementById(id);

async function refresh() {
  try {
    const [models, ready] = await Promise.all([
      fetch("/v1/models", { cache: "no-store" }),
      fetch("/readyz", { cache: "no-store" }),
    ]);
    if (!models.ok) throw new Error(`/v1/models says ${models.status}`);
    showServer(await models.json());
    showReady(ready.ok);
  } catch {
    showNotice("The server does not answer. Trying again.");
    setBadge(find("ready"), "failed", "no answer");
  }
}

function showServer(server) {
  find("server").textContent =
    `version ${server.version}, up ${uptime(server.uptime_s)}, process ${server.pid}`;
  showNotice(server.models.length ? "" : "No model is running.");
  showModels(server.models);
}

function showReady(isReady) {
  setBadge(find("ready"), isReady ? "ready" : "loading", isReady ? "ready" : "not ready");
}

function showNotice(text) {
  const notice = find("notice");
  notice.hidden = !text;
  if (notice.textContent !== text) notice.textContent = text;
}

function setBadge(badge, state, text) {
  badge.dataset.state = state;
  badge.textContent = text;
}

/** Adds, replaces and removes cards; a card whose model is the same stays, with what was typed into it. */
function showModels(models) {
  const list = find("models");
  const seen = new Set();
  for (const model of models) {
    const id = JSON.stringify([model.name, model.version]);
    const { name, version, paths, deadline_s, key, body, request_schema, example } = model;
    const definition = JSON.stringify([name, version, paths, deadline_s, key, body, request_schema, example]);
    seen.add(id);
    const old = cards.get(id);
    if (old?.definition !== definition) {
      const card = { ...modelCard(model, models.length === 1 || cards.size === 0), definition };
      if (old) old.element.replaceWith(card.element);
      else list.append(card.element);
      cards.set(id, card);
    }
    cards.get(id).update(model);
  }
  for (const [id, card] of cards) {
    if (seen.has(id)) continue;
    card.element.remove();
    cards.delete(id);
  }
}

function modelCard(model, open) {
  const badge = h("span", { class: "badge" });
  const reason = h("p", { class: "problem", hidden: true });
  const numbers = h("div", { class: "numbers" });
  const element = h(
    "article",
    { class: "card" },
    h(
      "div",
      { class: "head" },
      h("h2", {}, model.name),
      h("span", { class: "quiet" }, `version ${model.version}`),
      badge,
    ),
    reason,
    numbers,
    model.paths.length ? tryBox(model, open) : null,
  );
  const update = (now) => {
    setBadge(badge, now.state, now.state);
    reason.hidden = !now.reason;
    reason.textContent = now.reason ?? "";
    numbers.replaceChildren(modelFacts(now));
  };
  return { element, update };
}

function modelFacts(model) {
  const several = model.members > 1;
  return facts([
    ["Deadline", duration(model.deadline_s)],
    ["Members", several && model.combine ? `${model.members}, ${model.combine}` : String(model.members)],
    ["Key", model.key ? h("code", {}, model.key) : "none"],
    ["Fallback", model.has_fallback ? "yes" : "no"],
    ["Backend", model.backend],
    ["Workers", `${model.workers} with ${model.slots} ${model.slots === 1 ? "slot" : "slots"}`],
    [
      "Paths",
      h(
        "span",
        { class: "paths" },
        model.paths.map((path) => h("code", {}, path)),
      ),
    ],
  ]);
}

/** Closed boxes are empty until they are opened, so that a server with many models shows at once. */
function tryBox(model, open) {
  const box = h("details", {}, h("summary", {}, "Try it"));
  const fill = () => {
    if (box.open && box.childElementCount === 1) box.append(callBox(model));
  };
  box.addEventListener("toggle", fill);
  box.open = open;
  return box;
}

function uptime(seconds) {
  const units = [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
    ["s", 1],
  ];
  const first = units.findIndex(([, size]) => seconds >= size);
  if (first < 0) return "0 s";
  let left = Math.floor(seconds);
  const parts = units.slice(first, first + 2).map(([name, size]) => {
    const count = Math.floor(left / size);
    left -= count * size;
    return `${count} ${name}`;
  });
  return parts.join(" ");
}

async function watch() {
  if (!document.hidden) await refresh();
  setTimeout(watch, EVERY_MS);
}

document.addEventListener("visibilitychange", () => document.hidden || refresh());
watch();
