// The links between the operator's pages, and the other language.

import { h } from "./dom.js";
import { other, say } from "./words.js";

/** A button that changes to the other language. */
export const languageButton = () =>
  h("button", { type: "button", class: "plain", lang: other.code, onclick: () => other.choose() }, other.name);

/** Fills the page's head; `here` is the path of the page. */
export function showNav(here, title) {
  document.getElementById("title").textContent = title;
  const nav = document.getElementById("nav");
  nav.setAttribute("aria-label", say("server_nav"));
  const pages = [["/", "try_it"], ["/live", "live"], ["/history", "history"], ["/docs", "docs"], ["/metrics", "metrics"]];
  const links = pages.map(([path, name]) => h("a", { href: path, "aria-current": path === here ? "page" : null }, say(name)));
  nav.replaceChildren(...links, languageButton());
}
