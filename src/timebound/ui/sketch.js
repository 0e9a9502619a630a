// A small board to draw on. It also shows the picture that is in the request at the moment.

import { h } from "./dom.js";

const SIZE = 280;
const PEN = 16;

/** A board with file picker; `changed` gets each new picture in base64, `show(base64)` puts one on it. */
export function sketch(changed) {
  const canvas = h("canvas", {
    width: SIZE,
    height: SIZE,
    role: "img",
    "aria-label": "Drawing board; a file can be chosen instead",
  });
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  let shown = null; // base64 of what the board shows
  let last = null;

  const blank = () => {
    pen.fillStyle = "#fff";
    pen.fillRect(0, 0, SIZE, SIZE);
  };
  const publish = () => {
    shown = canvas.toDataURL("image/png").split(",")[1];
    changed(shown);
  };
  const stroke = (event) => {
    const box = canvas.getBoundingClientRect();
    const point = [
      ((event.clientX - box.left) * SIZE) / box.width,
      ((event.clientY - box.top) * SIZE) / box.height,
    ];
    Object.assign(pen, { lineWidth: PEN, lineCap: "round", lineJoin: "round", strokeStyle: "#000" });
    pen.beginPath();
    pen.moveTo(...(last ?? point));
    pen.lineTo(...point);
    pen.stroke();
    last = point;
  };
  let own = false; // a first stroke on somebody else's picture starts a fresh one
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    if (!own) blank();
    own = true;
    stroke(event);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!last) return;
    const steps = event.getCoalescedEvents?.() ?? [];
    (steps.length ? steps : [event]).forEach(stroke);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(name, () => {
      if (!last) return;
      last = null;
      publish();
    });
  }

  const show = async (base64) => {
    if (typeof base64 !== "string" || base64 === shown) return;
    shown = base64;
    own = false;
    const picture = await decode(base64);
    if (shown !== base64) return; // a newer one came while this one was decoded
    blank();
    if (!picture) return;
    const scale = Math.min(SIZE / picture.width, SIZE / picture.height);
    const [width, height] = [picture.width * scale, picture.height * scale];
    pen.imageSmoothingEnabled = scale < 1;
    pen.drawImage(picture, (SIZE - width) / 2, (SIZE - height) / 2, width, height);
  };
  const clear = () => {
    blank();
    own = true;
    publish();
  };
  const pick = async (event) => {
    const [file] = event.target.files;
    if (!file) return;
    const base64 = await encode(file);
    show(base64);
    changed(base64);
  };
  blank();
  const side = h(
    "div",
    { class: "side" },
    h("p", { class: "quiet" }, "Draw here, or take a picture from a file."),
    h("button", { type: "button", onclick: clear }, "Clear"),
    h(
      "label",
      { class: "field" },
      "Picture file",
      h("input", { type: "file", accept: "image/*", onchange: pick }),
    ),
  );
  return { element: h("div", { class: "sketch" }, canvas, side), show };
}

/** The picture, or null where the text is not one. Uses no data: address, which a strict policy forbids. */
async function decode(base64) {
  try {
    const bytes = Uint8Array.from(atob(base64.replace(/^data:[^,]*,/, "")), (char) => char.charCodeAt(0));
    return await createImageBitmap(new Blob([bytes]));
  } catch {
    return null;
  }
}

function encode(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.split(",")[1] ?? "");
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
