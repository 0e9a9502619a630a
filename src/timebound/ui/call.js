// The box that calls one model: what to send, what came back, and the same call for other programs.

import { answerView, failureView } from "./answer.js";
import { h } from "./dom.js";
import { isObject, parse } from "./json.js";
import { ask, hasKey } from "./key.js";
import { rawBody } from "./raw.js";
import { sameView } from "./same.js";
import { sampleStrip } from "./samples.js";
import { typedBody } from "./typed.js";

/** The box for one model of /v1/models. */
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
  const send = h("button", { type: "submit", class: "main" }, "Send");
  const result = h("div", { class: "result", "aria-live": "polite" }, waiting());
  const headers = () => ({
    "Content-Type": body.type,
    ...(timeout.value ? { "Timebound-Timeout-Ms": timeout.value } : {}),
    ...(model.members > 1 ? { "Timebound-Details": "votes" } : {}),
  });

  let isOut = false; // one call at a time
  let isDue = false; // something changed while one was out
  const submit = async () => {
    if (isOut) return void (isDue = live?.checked);
    isOut = true;
    isDue = false;
    body.beforeSend();
    send.disabled = true;
    result.setAttribute("aria-busy", "true");
    const limit_s = Math.min(model.deadline_s, Number(timeout.value) / 1000 || Infinity);
    try {
      const response = await exchange(url, headers(), body.content(), limit_s);
      complain(response);
      result.replaceChildren(...answerView(response, { model, limit_s, request: body.request() }));
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
      body.complain(problem.field, String(problem.detail ?? problem.title ?? "Refused"));
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
  timeout.addEventListener("input", refresh);
  refresh();
  const request = h(
    "form",
    { class: "request", noValidate: true, "aria-label": "Request" },
    sampleStrip(model, (sample) => {
      body.show(sample);
      submit();
    }),
    body.bar,
    body.element,
    h(
      "div",
      { class: "actions" },
      h("div", {}, send, h("button", { type: "button", onclick: () => body.reset() }, "Reset")),
      h(
        "div",
        { class: "options" },
        live && h("label", { class: "inline" }, live, "Send as I draw"),
        body.option,
        h("label", { class: "inline" }, "Timeout, ms ", timeout),
      ),
    ),
  );
  request.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  request.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit();
  });
  request.addEventListener("paste", (event) => {
    const [file] = event.clipboardData?.files ?? [];
    if (file?.type.startsWith("image/") && body.pictures.length) body.pictures[0].take(file);
  });
  return h(
    "div",
    { class: "call" },
    request,
    h("section", { class: "came", "aria-label": "Answer" }, result),
    same.element,
  );
}

const waiting = () => h("div", { class: "empty" }, h("p", {}, "The answer will be here."));

async function exchange(url, headers, content, limit_s) {
  const started = performance.now();
  // The server keeps the deadline; this limit only frees the button if the server is gone.
  const signal = AbortSignal.timeout(limit_s * 1000 + 30_000);
  const response = await ask(url, { method: "POST", headers, body: content, signal });
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
