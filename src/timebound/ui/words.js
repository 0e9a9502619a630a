// What pages say, in two languages. The browser's own is taken unless the reader chooses; `say` fills in the numbers.

import { texts } from "./texts.js";

const NAME = "timebound-language";
const LANGUAGES = ["en", "zh-Hant"];

const wanted = () => {
  const chosen = localStorage.getItem(NAME);
  if (LANGUAGES.includes(chosen)) return chosen;
  return /^zh\b/.test(navigator.language) ? "zh-Hant" : "en";
};

export const language = wanted();
document.documentElement.lang = language;

/** Whether there are words for this. */
export const isKnown = (key) => key in texts;

/** The words for a key, with `{names}` filled in; the key itself if there are none. */
export function say(key, values = {}) {
  const text = texts[key]?.[LANGUAGES.indexOf(language)] ?? key;
  return text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
}

/** The other language, and how to change to it. */
export const other = {
  name: language === "en" ? "中文" : "English",
  code: language === "en" ? "zh-Hant" : "en",
  choose() {
    localStorage.setItem(NAME, this.code);
    location.reload();
  },
};
