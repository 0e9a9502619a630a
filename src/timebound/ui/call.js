// The box that calls one model: what to send, what came back, and the same call for other programs.

import { answerView, failureView } from "./answer.js";
import { duration, h } from "./dom.js";
import { isObject, parse } from "./json.js";
import { freshKey, rawBody, typedBody } from "./bodies.js";
import { ask, hasKey } from "./key.js";
import { sameView } from "./same.js";
import { sampleStrip } from "./samples.js";
import { kept, keptView, linkedKey } from "./verdict.js";
import { say } from "./words.js";

/** The box for one model of /v1/models; `update(model)` tells what the server says of it now. */
export function callBox(model) {
  const url = location.origin + model.paths[0];
  let refresh = () => {};
  const changed = () => {
    refresh();
    if (live?.checked) sendSoon();
  };
  let live = null;
  const body = (model.body === "raw" ? rawBody : typedBody)(model, () => changed());
  const timeout = h("input", {
    type: "number",
    min: "1",
    step: "any",
    placeholder: String(Number((model.deadline_s * 1000).toPrecision(6))),
    inputMode: "numeric",
  });
  const send = h("button", { type: "submit", class: "main" }, say("send"));
  const result = h("div", { class: "result", "aria-live": "polite" }, waiting());
  const headers = () => ({
    "Content-Type": body.type,
    ...(timeout.value ? { "Timebound-Timeout-Ms": timeout.value } : {}),
    ...(model.members > 1 ? { "Timebound-Details": "votes" } : {}),
  });

  const limit = () => Math.min(model.deadline_s, Number(timeout.value) / 1000 || Infinity);
  const outlook = outlookView(() => limit() * 1000);

  let isOut = false; // one call at a time
  let isDue = false; // something changed while one was out
  const submit = async () => {
    if (isOut) return void (isDue = live?.checked);
    isOut = true;
    isDue = false;
    body.beforeSend();
    send.disabled = true;
    result.setAttribute("aria-busy", "true");
    const limit_s = limit();
    // By its key an answer is found again. Where a body is its own key, or has one, that is it.
    const own = body.key?.() ?? (model.key || model.cache ? null : freshKey({}));
    const named = own && !model.key ? { "Idempotency-Key": own } : {};
    try {
      const response = await exchange(url, { ...headers(), ...named }, body.content(), limit_s);
      complain(response);
      const quality = response.headers.get("Timebound-Quality");
      const row = own !== null && response.status < 300 ? keptView(model, String(own), quality) : null;
      const request = body.request();
      result.replaceChildren(...withRow(answerView(response, { model, limit_s, request }), row));
      showResult();
    } catch (error) {
      result.replaceChildren(...failureView(error));
    }
    result.removeAttribute("aria-busy");
    send.disabled = false;
    isOut = false;
    if (isDue) submit();
  };
  const showResult = () => {
    // On a narrow screen the answer is below; whoever draws on wants to keep the board in view.
    const isBelow = result.getBoundingClientRect().top > innerHeight - 120;
    if (isBelow && !live?.checked) result.scrollIntoView({ block: "start", behavior: "smooth" });
  };
  const complain = ({ status, text }) => {
    const problem = status >= 400 ? parse(text) : undefined;
    if (isObject(problem) && (problem.field || status === 400 || status === 422)) {
      body.complain(problem.field, String(problem.detail ?? problem.title ?? say("Refused")));
    }
  };
  let timer = 0;
  const sendSoon = () => {
    clearTimeout(timer);
    timer = setTimeout(submit, 150);
  };

  if (body.pictures.length) live = h("input", { type: "checkbox" });
  const shown = () => ({ ...headers(), ...(hasKey() ? { "X-API-Key": "YOUR-KEY" } : {}) });
  const same = sameView(() => ({ url, model, headers: shown(), body }));
  refresh = same.refresh;
  timeout.addEventListener("input", () => {
    refresh();
    outlook.show();
  });
  refresh();
  const request = h(
    "form",
    { class: "request", noValidate: true, "aria-label": say("request") },
    sampleStrip(model, (sample) => {
      body.show(sample);
      submit();
    }),
    body.bar,
    body.element,
    h(
      "div",
      { class: "actions" },
      h("div", {}, send, h("button", { type: "button", onclick: () => body.reset() }, say("reset"))),
      h(
        "div",
        { class: "options" },
        live && h("label", { class: "inline" }, live, say("as_i_draw")),
        body.option,
        h("label", { class: "inline" }, say("timeout"), timeout),
      ),
    ),
    outlook.element,
  );
  request.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  request.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit();
  });
  document.addEventListener("paste", (event) => {
    const [file] = event.clipboardData?.files ?? [];
    const isMine = body.pictures.length && request.offsetParent !== null; // the model that is shown
    if (isMine && file?.type.startsWith("image/")) body.pictures[0].take(file);
  });
  const linked = linkedKey(model);
  if (linked !== null) showKept(model, linked, result);
  const came = h("section", { class: "came", "aria-label": say("answer") }, result);
  const element = h("div", { class: "call" }, request, came, same.element);
  return { element, update: outlook.update };
}

/** The row follows what the model says, ahead of the details. */
function withRow(parts, row) {
  const after = parts.findIndex((part) => part.className === "word") + 1 || 1;
  return row ? [...parts.slice(0, after), row, ...parts.slice(after)] : parts;
}

/** Shows the answer that the page's address asks for. */
async function showKept(model, key, result) {
  try {
    const response = await read(() => kept(model, key));
    const at = Number(response.headers.get("Timebound-Finished-At"));
    const since = at ? say("kept_at", { at: new Date(at * 1000).toLocaleString() }) : "";
    const quality = response.headers.get("Timebound-Quality");
    const row = response.status === 200 ? keptView(model, key, quality) : null;
    const shown = withRow(answerView(response, { model, limit_s: model.deadline_s }), row);
    result.replaceChildren(h("p", { class: "quiet" }, since), ...shown);
  } catch (error) {
    result.replaceChildren(...failureView(error));
  }
}

const waiting = () => h("div", { class: "empty" }, h("p", {}, say("will_be_here")));

async function exchange(url, headers, content, limit_s) {
  // The server keeps the deadline; this limit only frees the button if the server is gone.
  const signal = AbortSignal.timeout(limit_s * 1000 + 30_000);
  return read(() => ask(url, { method: "POST", headers, body: content, signal }));
}

async function read(call) {
  const started = performance.now();
  const response = await call();
  const blob = await response.blob();
  const elapsed_s = (performance.now() - started) / 1000;
  return {
    status: response.status,
    statusText: response.statusText,
    headers: response.headers,
    blob,
    text: await blob.text(),
    elapsed_s,
  };
}

// --- what who sends now would get, by the server's present queue: told for one member, two, all --------------------

/** A line; `update(model)` shows what the server says now, `limit_ms()` is how long an answer may take. */
function outlookView(limit_ms) {
  let now = null;
  const words = h("span", {});
  const dot = h("i", { class: "dot", "aria-hidden": "true" });
  const element = h("p", { class: "outlook quiet", hidden: true }, dot, say("sent_now"), words);
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
  const quality = fitting === times.length ? "full" : fitting ? "partial" : has_fallback ? "fallback" : "refused";
  const time = duration(times[Math.max(0, fitting - 1)] / 1000);
  return { quality, said: say(`out_${quality}`, { n: fitting, of: times.length, time }) };
}
