// A board to draw on: black ink on white paper. It takes picture files too, and shows the picture in the request.

import { bytesOf, h } from "./dom.js";
import { say } from "./words.js";

const SIDE = 512; // drawn finer than it is sent, so that lines look smooth on any screen
const SENT = 256;
const PENS = [
  ["fine", 12],
  ["medium", 20],
  ["bold", 36],
];

/** `changed(base64, media)` gets each new picture; `show(base64)` puts one on the board without telling. */
export function sketch(changed, { label = "Picture", accept = "image/*" } = {}) {
  const canvas = h("canvas", {
    width: SIDE,
    height: SIDE,
    role: "img",
    "aria-label": `${label}: draw with mouse, pen or finger, or choose a file`,
  });
  const ink = canvas.getContext("2d", { willReadFrequently: true });
  let shown = null; // base64 of what the board shows
  let strokes = []; // what was drawn by hand since the paper was blank
  let isDrawing = false;
  let pen = PENS[1][1];

  const blank = () => {
    ink.fillStyle = "#fff";
    ink.fillRect(0, 0, SIDE, SIDE);
  };
  const publish = () => {
    shown = export256(canvas);
    undo.disabled = !strokes.length;
    changed(shown, "image/png");
  };
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) * SIDE) / box.width, ((event.clientY - box.top) * SIDE) / box.height];
  };
  const redraw = () => {
    blank();
    strokes.forEach((stroke) => draw(ink, stroke));
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    event.preventDefault();
    canvas.setPointerCapture(event.pointerId);
    isDrawing = true;
    shown = null; // a picture that is still being decoded comes too late
    strokes.push({ width: pen, points: [place(event)] }); // the first one on a given picture starts afresh
    redraw();
    hint.hidden = true;
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!isDrawing) return;
    const steps = event.getCoalescedEvents?.() ?? [];
    strokes.at(-1).points.push(...(steps.length ? steps : [event]).map(place));
    redraw();
  });
  for (const name of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(name, () => {
      if (!isDrawing) return;
      isDrawing = false;
      publish();
    });
  }

  const show = async (base64) => {
    if (base64 === shown) return;
    shown = base64;
    strokes = [];
    undo.disabled = true;
    const picture = typeof base64 === "string" && base64 ? await decode(base64) : null;
    if (shown !== base64) return; // a newer one came while this one was decoded
    blank();
    hint.hidden = picture !== null;
    if (picture) fit(ink, picture, SIDE);
  };
  const take = async (file) => {
    if (!file) return;
    const base64 = await encode(file);
    show(base64);
    changed(base64, file.type || "application/octet-stream");
  };
  const clear = () => {
    strokes = [];
    blank();
    hint.hidden = false;
    publish();
  };
  const undo = h("button", { type: "button", disabled: true }, say("undo"));
  undo.addEventListener("click", () => {
    strokes.pop();
    redraw();
    publish();
  });
  const hint = h("p", { class: "paper-hint", "aria-hidden": "true" }, say("draw_here"));
  const file = h("input", {
    type: "file",
    accept,
    class: "unseen",
    onchange: (event) => take(event.target.files[0]),
  });
  const pens = h(
    "select",
    { "aria-label": say("pen"), onchange: (event) => (pen = Number(event.target.value)) },
    PENS.map(([name, width]) => h("option", { value: width, selected: width === pen }, say(`pen_${name}`))),
  );
  const paper = h("div", { class: "paper" }, canvas, hint);
  onDrop(paper, take);
  blank();
  const tools = h(
    "div",
    { class: "tools" },
    h("button", { type: "button", onclick: clear }, say("clear")),
    undo,
    pens,
    h("label", { class: "button" }, file, say("open_file")),
    cameraButton(take),
  );
  return { element: h("div", { class: "sketch" }, paper, tools), show, take };
}

/** Has `take` get a file that is dropped on an element. */
export function onDrop(element, take) {
  const over = (isOver) => (event) => {
    if (![...(event.dataTransfer?.types ?? [])].includes("Files")) return;
    event.preventDefault();
    element.classList.toggle("over", isOver);
  };
  element.addEventListener("dragenter", over(true));
  element.addEventListener("dragover", over(true));
  element.addEventListener("dragleave", over(false));
  element.addEventListener("drop", (event) => {
    over(false)(event);
    take(event.dataTransfer.files[0]);
  });
}

/** A small canvas with the picture, for a tile; empty where the text is no picture. */
export function thumbnail(base64, side = 56) {
  const canvas = h("canvas", { width: 2 * side, height: 2 * side, class: "thumb", "aria-hidden": "true" });
  decode(base64).then((picture) => picture && fit(canvas.getContext("2d"), picture, 2 * side));
  return canvas;
}

/** The picture, or null where the text is not one. Uses no data: address, which a strict policy forbids. */
export async function decode(base64) {
  try {
    return await createImageBitmap(new Blob([bytesOf(base64.replace(/^data:[^,]*,/, ""))]));
  } catch {
    return null;
  }
}

/** A file's bytes as base64. */
export function encode(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.split(",")[1] ?? "");
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

function draw(ink, { width, points }) {
  Object.assign(ink, { lineWidth: width, lineCap: "round", lineJoin: "round", strokeStyle: "#000" });
  ink.beginPath();
  ink.moveTo(...points[0]);
  // Through the middles of the way from point to point: a line without corners.
  points.forEach(([x, y], i) => {
    const [nextX, nextY] = points[i + 1] ?? [x, y];
    ink.quadraticCurveTo(x, y, (x + nextX) / 2, (y + nextY) / 2);
  });
  ink.stroke();
}

function fit(ink, picture, side) {
  const scale = Math.min(side / picture.width, side / picture.height);
  const [width, height] = [picture.width * scale, picture.height * scale];
  ink.fillStyle = "#fff";
  ink.fillRect(0, 0, side, side);
  // A tiny picture is shown by its pixels, as the model sees it.
  ink.imageSmoothingEnabled = scale < 6;
  ink.drawImage(picture, (side - width) / 2, (side - height) / 2, width, height);
}

function export256(canvas) {
  const small = h("canvas", { width: SENT, height: SENT });
  const ink = small.getContext("2d");
  ink.imageSmoothingQuality = "high";
  ink.drawImage(canvas, 0, 0, SENT, SENT);
  return small.toDataURL("image/png").split(",")[1];
}

// --- the camera, where the browser has one to give: https, or this machine -------------------------------------

/** The button, or null; `take(file)` gets the picture. */
function cameraButton(take) {
  if (!navigator.mediaDevices?.getUserMedia) return null;
  const button = h("button", { type: "button" }, say("camera"));
  button.addEventListener("click", () => openCamera(take, button));
  return button;
}

async function openCamera(take, button) {
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch (error) {
    const reasons = { NotAllowedError: "Camera not allowed", NotFoundError: "No camera found" };
    button.textContent = reasons[error.name] ?? say("no_camera");
    setTimeout(() => (button.textContent = say("camera")), 3000);
    return;
  }
  const video = h("video", { muted: true, playsInline: true, autoplay: true });
  video.srcObject = stream;
  const shoot = h("button", { type: "button", class: "main", disabled: true }, say("shoot"));
  video.addEventListener("loadeddata", () => (shoot.disabled = false));
  const close = h("button", { type: "button", onclick: () => dialog.close() }, say("cancel"));
  const dialog = h("dialog", { class: "camera", "aria-label": "Camera" }, video, h("div", { class: "tools" }, shoot, close));
  shoot.addEventListener("click", () => {
    const canvas = h("canvas", { width: video.videoWidth, height: video.videoHeight });
    canvas.getContext("2d").drawImage(video, 0, 0);
    canvas.toBlob((blob) => {
      take(new File([blob], "camera.jpg", { type: "image/jpeg" }));
      dialog.close();
    }, "image/jpeg", 0.92);
  });
  dialog.addEventListener("close", () => {
    stream.getTracks().forEach((track) => track.stop());
    dialog.remove();
  });
  document.body.append(dialog);
  dialog.showModal();
}
