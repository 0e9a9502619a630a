// A model's samples as tiles: pictures show themselves, the rest go by their titles.

import { h } from "./dom.js";
import { say } from "./words.js";
import { ask } from "./key.js";
import { pictureField } from "./schema.js";
import { thumbnail } from "./sketch.js";

/** Tiles to click, fetched once; null for a model without samples. `choose(sample)` gets the one clicked. */
export function sampleStrip(model, choose) {
  if (!model.samples) return null;
  const isPictured = takesPicture(model);
  // The strip has its height before its tiles come, so that nothing moves under a hand that draws.
  const kind = isPictured ? "samples pictured" : "samples";
  const strip = h("div", { class: kind, role: "group", "aria-label": say("samples") });
  load(model.name).then((samples) => strip.append(...samples.map((sample) => tile(model, sample, choose))));
  return strip;
}

async function load(name) {
  try {
    const response = await ask(`/v1/models/${encodeURIComponent(name)}/samples`);
    return response.ok ? (await response.json()).samples : [];
  } catch {
    return []; // the page works without them
  }
}

function tile(model, sample, choose) {
  const picture = pictureOf(model, sample);
  return h(
    "button",
    {
      type: "button",
      class: picture ? "tile pictured" : "tile",
      title: sample.title,
      onclick: () => choose(sample),
    },
    picture ? thumbnail(picture) : null,
    h("span", {}, sample.title),
  );
}

const takesPicture = (model) =>
  Boolean(model.accepts?.some((media) => media.startsWith("image/")) || pictureField(model.request_schema));

function pictureOf(model, sample) {
  const isPicture = sample.media ? sample.media.startsWith("image/") : takesPicture(model);
  if (sample.data) return isPicture ? sample.data : null;
  const value = sample.body?.[pictureField(model.request_schema)];
  return typeof value === "string" ? value : null;
}
