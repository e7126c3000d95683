// Asks the server; a refusal becomes an error with the server's own words.
import { sentence } from "/assets/dom.js";

const API = "/api/v1";

export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export async function ask(path, options) {
  let response;
  try {
    response = await fetch(API + path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "unreachable", "The server cannot be reached. Is it still running?");
  }
  if (response.ok) return response.json();
  const said = await response.json().catch(() => ({}));
  const problem = said.error || { code: "failed", message: `The server answered ${response.status}.` };
  const refused = new Refused(response.status, problem.code, sentence(problem.message));
  refused.after = Number(response.headers.get("Retry-After")) || 1;
  throw refused;
}

export const signIn = (token) => ask("/session", { method: "POST", headers: { Authorization: `Bearer ${token}` } });

// What is too much for one request is asked in halves; one image that is too much by itself has a problem.
export async function predict(images, model, compare, signal, busy) {
  try {
    return (await send(images, model, compare, signal, busy)).images;
  } catch (error) {
    if (error.status !== 413) throw error;
    if (images.length === 1) return [{ problem: { message: error.message }, answers: [] }];
    const half = Math.ceil(images.length / 2);
    const first = await predict(images.slice(0, half), model, compare, signal, busy);
    return [...first, ...await predict(images.slice(half), model, compare, signal, busy)];
  }
}

// A busy server is asked again, later and later, as long as nobody gives up.
async function send(images, model, compare, signal, busy) {
  const query = new URLSearchParams({ model, ...(compare ? { compare } : {}) });
  for (let attempt = 1; ; attempt += 1) {
    const form = new FormData();
    for (const image of images) form.append("images", image, "image"); // names stay here
    try {
      return await ask(`/predict?${query}`, { method: "POST", body: form, signal });
    } catch (error) {
      if (error.status !== 429 || attempt === 20) throw error;
      busy();
      await new Promise((resolve) => setTimeout(resolve, 1000 * error.after * Math.min(attempt, 5)));
      signal.throwIfAborted();
    }
  }
}
