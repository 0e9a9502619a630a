// A button that takes a picture with the camera, where the browser has one to give (https, or this machine).

import { h } from "./dom.js";

/** The button, or null; `take(file)` gets the picture. */
export function cameraButton(take) {
  if (!navigator.mediaDevices?.getUserMedia) return null;
  const button = h("button", { type: "button" }, "Camera");
  button.addEventListener("click", () => open(take, button));
  return button;
}

async function open(take, button) {
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch (error) {
    const reasons = { NotAllowedError: "Camera not allowed", NotFoundError: "No camera found" };
    button.textContent = reasons[error.name] ?? "No camera";
    setTimeout(() => (button.textContent = "Camera"), 3000);
    return;
  }
  const video = h("video", { muted: true, playsInline: true, autoplay: true });
  video.srcObject = stream;
  const shoot = h("button", { type: "button", class: "main", disabled: true }, "Take picture");
  video.addEventListener("loadeddata", () => (shoot.disabled = false));
  const close = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
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
