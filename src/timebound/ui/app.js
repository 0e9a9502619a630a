// The front page: what is running, from /v1/models and /readyz, asked again every few seconds while visible.

import { callBox } from "./call.js";
import { duration, facts, h, sentence } from "./dom.js";
import { say } from "./words.js";
import { ask, keyForm } from "./key.js";
import { languageButton } from "./nav.js";
import { fields } from "./schema.js";

const EVERY_MS = 5000;
const EVERY_MS_UNREADY = 1000;
const cards = new Map(); // one per model name and version: { element, update, definition, name }
const find = (id) => document.getElementById(id);
let isReady = false;

async function refresh() {
  try {
    const [models, ready] = await Promise.all([
      ask("/v1/models", { cache: "no-store" }),
      fetch("/readyz", { cache: "no-store" }),
    ]);
    if (models.status === 401) return showKeyForm((await ready.json()).status === "ready");
    if (!models.ok) throw new Error(`/v1/models says ${models.status}`);
    showServer(await models.json(), await ready.json());
  } catch {
    isReady = false;
    showNotice(say("gone"));
    setBadge(find("ready"), "failed", say("no_answer"));
  }
}

function showKeyForm(ready) {
  isReady = ready;
  setBadge(find("ready"), ready ? "ready" : "loading", say(ready ? "ready" : "not_ready"));
  showNotice("");
  if (!find("key")) find("notice").after(keyForm(refresh));
}

function showServer(server, ready) {
  isReady = ready.status === "ready";
  find("server").textContent = say("up_for", { version: server.version, time: uptime(server.uptime_s) });
  setBadge(find("ready"), isReady ? "ready" : "loading", say(isReady ? "ready" : "not_ready"));
  showNotice(isReady ? "" : notReady(server.models.length, ready.reason));
  showModels(server.models);
}

function notReady(count, reason) {
  return reason === "loading" ? say("loads") : say(count ? "not_now" : "no_model", { reason });
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
    const { state, reason, workers, slots, warm_up_s, sent_now_ms, margin_ms, ...lasting } = model;
    const definition = JSON.stringify(lasting);
    seen.add(id);
    const old = cards.get(id);
    if (old?.definition !== definition) {
      const card = { ...modelCard(model), definition, name: model.name };
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
  showPicker();
}

/** One model is shown at a time; which one stands in the address, so that it can be linked to. */
function showPicker() {
  const all = [...cards.values()];
  const wanted = decodeURIComponent(location.hash.slice(1));
  const chosen = all.find(({ name }) => name === wanted) ?? all[0];
  for (const card of all) {
    card.element.hidden = card !== chosen;
    if (card === chosen) card.open();
  }
  const picker = find("picker");
  picker.hidden = all.length < 2;
  const links = all.map((card) =>
    h(
      "a",
      { href: `#${encodeURIComponent(card.name)}`, "aria-current": card === chosen ? "page" : null },
      card.name,
    ),
  );
  const now = [...picker.children].map((link) => link.outerHTML).join("");
  if (now !== links.map((link) => link.outerHTML).join("")) picker.replaceChildren(...links);
}

function modelCard(model) {
  const badge = h("span", { class: "badge" });
  const numbers = h("div", { class: "numbers" });
  const box = h("div");
  let call = null;
  let latest = model;
  const element = h(
    "article",
    { class: "card" },
    h(
      "div",
      { class: "head" },
      h("h2", {}, model.name),
      h("span", { class: "quiet" }, summary(model)),
      badge,
    ),
    model.description && h("p", { class: "said quiet" }, sentence(model.description)),
    box,
    h("details", {}, h("summary", {}, say("about")), numbers),
  );
  const update = (now) => {
    setBadge(badge, now.state, now.state);
    badge.hidden = now.state === "ready"; // the head of the page says so already
    numbers.replaceChildren(modelFacts(now));
    latest = now;
    call?.update(now);
  };
  // Made when it is first looked at, so that a server with many models shows at once.
  const open = () => {
    if (call) return;
    call = callBox(model);
    box.append(call.element);
    call.update(latest);
  };
  return { element, update, open };
}

function summary(model) {
  const members = model.members > 1 ? say("members_of", { n: model.members }) : "";
  return members + say("within", { time: duration(model.deadline_s) });
}

function modelFacts(model) {
  const codes = (texts) =>
    h(
      "span",
      { class: "paths" },
      texts.map((text) => h("code", {}, text)),
    );
  return facts([
    [say("version"), model.version],
    [say("Deadline"), duration(model.deadline_s)],
    [
      say("Members"),
      model.members > 1
        ? `${model.member_names.join(", ")}${model.combine ? ` (${model.combine})` : ""}`
        : null,
    ],
    [say("key"), model.key ? h("code", {}, model.key) : say("none")],
    [say("Answers"), model.answer_schema ? codes(fields(model.answer_schema).map(answered)) : model.answer_media],
    [say("Accepts"), model.accepts.length ? codes(model.accepts) : null],
    [say("Fallback"), say(model.has_fallback ? "yes" : "no")],
    [say("Backend"), model.engine ? `${model.backend} on ${model.engine}` : model.backend],
    [say("Workers"), say(model.slots === 1 ? "workers_with_one" : "workers_with", model)],
    [say("Paths"), codes(model.paths)],
  ]);
}

const answered = ({ name, schema }) => (schema.type ? `${name}: ${[schema.type].flat()[0]}` : name);

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
  setTimeout(watch, isReady ? EVERY_MS : EVERY_MS_UNREADY);
}

find("ready").before(languageButton());
for (const one of document.querySelectorAll("[data-say]")) one.textContent = say(one.dataset.say);
document.addEventListener("visibilitychange", () => document.hidden || refresh());
addEventListener("hashchange", showPicker);
watch();
