// Commands for a terminal that work on this server as they stand.
import { ask } from "/assets/api.js";

const OPEN = "/health"; // needs no token
const SAVED = { "image/png": "exemplar.png", "text/html": "report.html" };

// What the examples speak of: a model, a bundle and a run of this server, and whether it asks for a token.
export async function known() {
  const told = await ask("/models");
  const runs = told.runs ? (await ask("/runs")).runs : [];
  const token = await ask("/models", { credentials: "omit" }).then(() => false, (error) => error.status === 401);
  const reported = runs.find((run) => run.report) || { id: "0123456789abcdef" };
  return { model: told.models[0], bundle: told.bundles[0] || "model.endocil", run: reported.id, runs: told.runs, token };
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function flags(verb, path, operation, things) {
  const sent = operation.requestBody ? Object.keys(operation.requestBody.content)[0] : "";
  const answered = Object.keys((operation.responses["200"] || {}).content || {});
  const saved = answered.map((kind) => SAVED[kind]).find(Boolean);
  return [
    things.token && !path.endsWith(OPEN) ? '-H "Authorization: Bearer $TOKEN"' : "",
    verb === "get" || sent === "multipart/form-data" ? "" : `-X ${verb.toUpperCase()}`,
    sent === "multipart/form-data" ? "-F images=@image.jpg" : "",
    sent === "application/json" ? `-H 'Content-Type: application/json' -d ${quoted(JSON.stringify({ bundle: things.bundle }))}` : "",
    path.endsWith("/session") ? "-c cookies.txt" : "",
    saved ? `-o ${saved}` : "",
  ];
}

export function example(verb, path, operation, things) {
  const filled = path.replace("/runs/{id}", `/runs/${things.run}`).replace("{id}", things.model.id)
    .replace("{digest}", things.model.digest.slice(0, 16)).replace("{row}", "0");
  return ["curl", ...flags(verb, path, operation, things), location.origin + filled].filter(Boolean).join(" ");
}
