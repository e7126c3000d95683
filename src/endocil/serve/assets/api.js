// Asks the server; a refusal becomes an error with the server's own words.
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
  const refused = new Refused(response.status, problem.code, problem.message);
  refused.after = Number(response.headers.get("Retry-After")) || 1;
  throw refused;
}

export const signIn = (token) => ask("/session", { method: "POST", headers: { Authorization: `Bearer ${token}` } });

// A busy server is asked again, later and later, as long as nobody gives up.
export async function predict(files, model, compare, signal, busy) {
  const query = new URLSearchParams({ model, ...(compare ? { compare } : {}) });
  for (let attempt = 1; ; attempt += 1) {
    const form = new FormData();
    for (const file of files) form.append("images", file, "image"); // names stay here
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
