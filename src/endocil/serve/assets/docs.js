// The API's OpenAPI description for people, with commands that work on this server as they stand.
import { request } from "/assets/api.js";
import { byId, make, showAlert, startTheme, table } from "/assets/dom.js";

const HEALTH = "/health"; // needs no token
const OUTPUT_FILES = { "image/png": "exemplar.png", "text/html": "report.html" };

const code = (text) => make("code", {}, text);
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

function typeName(schema) {
  if (schema.$ref) return refName(schema);
  if (schema.anyOf) return schema.anyOf.map(typeName).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${typeName(schema.items || {})}`;
  return schema.format === "binary" ? "file" : schema.type || "any";
}

function fieldTable(schema) {
  const rows = Object.entries(schema.properties || {}).map(([name, field]) => [code(name), typeName(field), field.description || ""]);
  return scrolling(table(["field", "type", "description"], rows));
}

function operationCard(verb, path, operation, schemas, values) {
  const parameters = (operation.parameters || []).map((one) => [code(one.name), one.in, typeName(one.schema), one.required ? "yes" : "no"]);
  const { 200: ok = {}, ...others } = operation.responses;
  const response = ok.content && ok.content["application/json"];
  const schema = response && (response.schema.$ref ? schemas[refName(response.schema)] : response.schema);
  const errors = Object.entries(others).map(([status, one]) => [status, one.description]);
  return make("article", { className: "card" },
    make("h2", {}, make("span", { className: "verb" }, verb.toUpperCase()), " ", code(path)),
    make("p", {}, `${operation.summary}.`),
    operation.description ? make("p", { className: "faint" }, operation.description) : null,
    make("pre", { tabIndex: 0 }, example(verb, path, operation, values)),
    parameters.length ? make("h3", {}, "Parameters") : null,
    parameters.length ? scrolling(table(["name", "in", "type", "required"], parameters)) : null,
    schema ? make("h3", {}, "Response") : null,
    schema ? fieldTable(schema) : null,
    make("details", {}, make("summary", {}, "Errors"), scrolling(table(["status", "reason"], errors))));
}

function schemaCard(name, schema) {
  return make("article", { className: "card" }, make("h2", {}, code(name)),
    schema.description ? make("p", { className: "faint" }, schema.description) : null, fieldTable(schema));
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
