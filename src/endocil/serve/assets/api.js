// Requests to the server; an error response becomes an ApiError with the server's message.
import { sentence } from "/assets/dom.js";

const API = "/api/v1";
const MAX_ATTEMPTS = 20; // while the server is busy

export class ApiError extends Error {
  constructor(status, message, retryAfter = 1) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter; // seconds
  }
}

export const request = async (path, options) => (await send(path, options)).json();

async function send(path, options) {
  let response;
  try {
    response = await fetch(API + path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached. Is it still running?");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  const message = body.error ? body.error.message : `the server answered with status ${response.status}`;
  throw new ApiError(response.status, sentence(message), Number(response.headers.get("Retry-After")) || 1);
}

export const signIn = (token) => request("/session", { method: "POST", headers: { Authorization: `Bearer ${token}` } });

// Images that are too much for one request are sent in halves; a single image that is too much gets an error.
export async function predict(images, model, compare, signal, onBusy) {
  try {
    return (await sendImages(images, model, compare, signal, onBusy)).images;
  } catch (error) {
    if (error.status !== 413) throw error;
    if (images.length === 1) return [{ index: 0, error: { message: error.message }, predictions: [] }];
    const half = Math.ceil(images.length / 2);
    const first = await predict(images.slice(0, half), model, compare, signal, onBusy);
    const rest = await predict(images.slice(half), model, compare, signal, onBusy);
    return [...first, ...rest.map((result) => ({ ...result, index: result.index + half }))];
  }
}

async function sendImages(images, model, compare, signal, onBusy) {
  const query = new URLSearchParams({ model, ...(compare ? { compare } : {}) });
  return (await sendForm(`/predict?${query}`, images, signal, onBusy)).json();
}

// The image with the evidence for a class drawn over it, and the digest of the model that was asked.
export async function gradcam(image, model, className, frame) {
  const query = new URLSearchParams({ model, class_name: className, frame });
  const response = await sendForm(`/gradcam?${query}`, [image]);
  return { blob: await response.blob(), digest: response.headers.get("X-Endocil-Model") };
}

// Tries again while the server is busy, with growing delays.
async function sendForm(path, images, signal, onBusy) {
  for (let attempt = 1; ; attempt += 1) {
    const form = new FormData();
    for (const image of images) form.append("images", image, "image"); // file names are not sent
    try {
      return await send(path, { method: "POST", body: form, signal });
    } catch (error) {
      if (error.status !== 429 || attempt === MAX_ATTEMPTS) throw error;
      if (onBusy) onBusy();
      await new Promise((resolve) => setTimeout(resolve, 1000 * error.retryAfter * Math.min(attempt, 5)));
      if (signal) signal.throwIfAborted();
    }
  }
}
