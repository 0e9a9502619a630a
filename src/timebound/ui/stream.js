// The operator's pass of this tab, and a stream of messages asked for with it: EventSource sends no headers.

import { h } from "./dom.js";
import { say } from "./words.js";

const NAME = "timebound-pass";

/** Takes the pass from the address, where `timebound live` put it, and keeps it for this tab. */
export function takePass() {
  const given = new URLSearchParams(location.hash.slice(1)).get("pass");
  if (!given) return;
  sessionStorage.setItem(NAME, given);
  history.replaceState(null, "", location.pathname + location.search);
}

/** `fetch` with the pass, or whatever token was typed in. */
export function look(url, options = {}) {
  const pass = sessionStorage.getItem(NAME);
  return fetch(url, { ...options, headers: { ...options.headers, ...(pass ? { Authorization: `Bearer ${pass}` } : {}) } });
}

/** The JSON at an address; an error with `status` and the server's own words if there is none. */
export async function read(url, options) {
  const answer = await look(url, options);
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(body.detail ?? answer.statusText), { status: answer.status });
  return body;
}

/** Calls `told` with every message, and returns when the server ends the stream or cannot be reached. */
export async function follow(url, told, signal) {
  const answer = await look(url, { signal });
  if (!answer.ok) throw Object.assign(new Error(answer.statusText), { status: answer.status });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) told(JSON.parse(part.replace(/^data: /, "")));
  }
}

/** A form that asks for a pass or the admin token, and says why a given one will not do; then calls `done()`. */
export function passForm(detail, done) {
  const { port, protocol } = location;
  const input = h("input", { type: "password", autocomplete: "off", required: true, id: "pass" });
  const form = h(
    "form",
    { class: "notice door" },
    h("p", {}, say("door")),
    h("p", {}, h("code", {}, "timebound live", port && port !== "8000" && ` --url ${protocol}//127.0.0.1:${port}`)),
    sessionStorage.getItem(NAME) && h("p", { class: "quiet" }, detail),
    h("label", { htmlFor: "pass" }, say("door_label")),
    h("div", {}, input, h("button", { type: "submit" }, say("use"))),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(NAME, input.value.trim());
    form.remove();
    done();
  });
  return form;
}
