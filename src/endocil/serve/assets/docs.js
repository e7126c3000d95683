// The API's OpenAPI description for people, with commands that work on this server as they stand.
import { request } from "/assets/api.js";
import { byId, make, showAlert, startTheme, table } from "/assets/dom.js";

const HEALTH = "/health"; // needs no token
const OUTPUT_FILES = { "image/png": "image.png", "text/html": "report.html" };

const code = (text) => make("code", {}, text);
const prose = (text) => make("span", {}, ...(text || "").split("`").map((part, i) => (i % 2 ? code(part) : part)));
const scrolling = (element) => make("div", { className: "scroll" }, element);
const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const refName = (schema) => schema.$ref.split("/").pop();

// A model, a model file and a run of this server for the examples, and whether a token is required.
async function exampleValues() {
  const served = await request("/models");
  const runs = served.runs ? (await request("/runs")).runs : [];
  const token = await request("/models", { credentials: "omit" }).then(() => false, (error) => error.status === 401);
  const run = runs.find((each) => each.report) || { id: "0123456789abcdef" };
  return { model: served.models[0], file: served.files[0] || "model.endocil", run: run.id, runs: served.runs, token };
}

function example(verb, path, operation, values) {
  const body = operation.requestBody ? Object.keys(operation.requestBody.content)[0] : "";
  const responses = Object.keys((operation.responses["200"] || {}).content || {});
  const output = responses.map((type) => OUTPUT_FILES[type]).find(Boolean);
  const address = path.replace("/runs/{id}", `/runs/${values.run}`).replace("{id}", values.model.id)
    .replace("{digest}", values.model.digest.slice(0, 16)).replace("{row}", "0");
  return ["curl",
    values.token && !path.endsWith(HEALTH) ? '-H "Authorization: Bearer $TOKEN"' : "",
    verb === "get" || body === "multipart/form-data" ? "" : `-X ${verb.toUpperCase()}`,
    body === "multipart/form-data" ? "-F images=@image.jpg" : "",
    body === "application/json" ? `-H 'Content-Type: application/json' -d ${quote(JSON.stringify({ file: values.file }))}` : "",
    path.endsWith("/session") ? "-c cookies.txt" : "",
    output ? `-o ${output}` : "",
    location.origin + address].filter(Boolean).join(" ");
}

const isOne = (operation) => operation.requestBody.content["multipart/form-data"].schema.properties.images.maxItems === 1;

// A form that sends the request from this page, and shows what comes back as it came.
function tryForm(verb, path, operation, values) {
  const body = operation.requestBody ? Object.keys(operation.requestBody.content)[0] : "";
  const known = { digest: values.model.digest.slice(0, 16), row: "0", id: path.startsWith("/api/v1/runs") ? values.run : values.model.id };
  const field = (name, input) => make("label", {}, make("span", {}, code(name)), input);
  const inputs = (operation.parameters || []).map((one) => {
    const initial = one.in === "path" ? known[one.name] : one.schema.default;
    return { ...one, input: make("input", { type: "text", value: initial === undefined ? "" : String(initial), required: one.required === true }) };
  });
  const files = body === "multipart/form-data" ? make("input", { type: "file", multiple: !isOne(operation), required: true, accept: ".bmp,.dcm,.dicom,.jpeg,.jpg,.png,.tif,.tiff,.webp" }) : null;
  const json = body === "application/json" ? make("textarea", { rows: 2, value: JSON.stringify({ file: values.file }) }) : null;
  const output = make("div", { className: "answer", role: "status" });
  const send = make("button", { type: "submit", className: "primary" }, verb === "put" ? "Send: this replaces the model" : "Send");
  const form = make("form", {}, make("div", { className: "fields" }, ...inputs.map((one) => field(one.name, one.input)),
    files ? field("images", files) : null, json ? field("body", json) : null), send, output);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const of = (place) => inputs.filter((one) => one.in === place && one.input.value !== "").map((one) => [one.name, one.input.value]);
    const address = of("path").reduce((text, [name, value]) => text.replace(`{${name}}`, encodeURIComponent(value)), path);
    const query = new URLSearchParams(of("query")).toString();
    const options = { method: verb.toUpperCase() };
    if (files) {
      options.body = new FormData();
      for (const file of files.files) options.body.append("images", file, "image"); // file names are not sent
    } else if (json) Object.assign(options, { body: json.value, headers: { "Content-Type": "application/json" } });
    output.replaceChildren(make("p", { className: "waiting" }, "Waiting …"));
    try {
      const began = performance.now();
      const response = await fetch(address + (query ? `?${query}` : ""), options);
      const status = `${response.status} ${response.statusText}, ${Math.round(performance.now() - began)} ms`;
      output.replaceChildren(make("p", {}, status), await shown(response));
    } catch {
      output.replaceChildren(make("p", { className: "problem" }, "The server cannot be reached, or a file cannot be read."));
    }
  });
  return make("details", { className: "try" }, make("summary", {}, "Try it"), form);
}

async function shown(response) {
  const type = response.headers.get("Content-Type") || "";
  if (type.startsWith("image/")) return make("img", { src: URL.createObjectURL(await response.blob()), alt: "The image that came back" });
  const text = await response.text();
  return make("pre", { tabIndex: 0 }, type.includes("json") ? JSON.stringify(JSON.parse(text), null, 2) : text.slice(0, 20000));
}

function typeName(schema) {
  if (schema.$ref) return refName(schema);
  if (schema.anyOf) return schema.anyOf.map(typeName).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${typeName(schema.items || {})}`;
  return schema.format === "binary" ? "file" : schema.type || "any";
}

function fieldTable(schema) {
  const rows = Object.entries(schema.properties || {}).map(([name, field]) => [code(name), typeName(field), prose(field.description)]);
  return scrolling(table(["field", "type", "description"], rows));
}

function operationCard(verb, path, operation, schemas, values) {
  const parameters = (operation.parameters || []).map((one) => [code(one.name), one.in, typeName(one.schema), one.required ? "yes" : "no", prose(one.description)]);
  const { 200: ok = {}, ...others } = operation.responses;
  const response = ok.content && ok.content["application/json"];
  const schema = response && (response.schema.$ref ? schemas[refName(response.schema)] : response.schema);
  const errors = Object.entries(others).map(([status, one]) => [status, one.description]);
  return make("article", { className: "card" },
    make("h2", {}, make("span", { className: "verb" }, verb.toUpperCase()), " ", code(path)),
    make("p", {}, `${operation.summary}.`),
    operation.description ? make("p", { className: "faint" }, prose(operation.description)) : null,
    make("pre", { tabIndex: 0 }, example(verb, path, operation, values)),
    path.endsWith("/session") ? null : tryForm(verb, path, operation, values),
    parameters.length ? make("h3", {}, "Parameters") : null,
    parameters.length ? scrolling(table(["name", "in", "type", "required", "description"], parameters)) : null,
    schema ? make("h3", {}, "Response") : null,
    schema ? fieldTable(schema) : null,
    make("details", {}, make("summary", {}, "Errors"), scrolling(table(["status", "reason"], errors))));
}

function schemaCard(name, schema) {
  return make("article", { className: "card" }, make("h2", {}, code(name)),
    schema.description ? make("p", { className: "faint" }, prose(schema.description)) : null, fieldTable(schema));
}

startTheme();
Promise.all([request("/openapi.json"), exampleValues()]).then(([description, values]) => {
  const { schemas } = description.components;
  byId("runs-link").hidden = !values.runs;
  byId("token-hint").hidden = !values.token;
  const operations = Object.entries(description.paths).flatMap(([path, verbs]) => Object.entries(verbs)
    .map(([verb, operation]) => operationCard(verb, path, operation, schemas, values)));
  const types = Object.entries(schemas).filter(([name, schema]) => schema.properties && !name.includes("Validation"));
  byId("operations").replaceChildren(...operations, make("h1", {}, "Types"), ...types.map((entry) => schemaCard(...entry)));
}).catch((error) => {
  byId("operations").replaceChildren();
  showAlert(error.status === 401 ? "This server requires a token: sign in on its first page, then come back." : error.message);
});
