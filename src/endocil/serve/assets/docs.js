// The API's own description, for people.
import { ask } from "/assets/api.js";
import { example, known } from "/assets/examples.js";
import { alertWith, byId, make, startTheme } from "/assets/dom.js";

const resolved = (schema, whole) => {
  if (!schema || !schema.$ref) return schema || {};
  return whole.components.schemas[schema.$ref.split("/").pop()] || {};
};

function kind(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(kind).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  return schema.type === "array" ? `list of ${kind(schema.items || {})}` : schema.format === "binary" ? "file" : schema.type || "any";
}

function table(heads, rows) {
  return make("div", { className: "scroll" }, make("table", {},
    make("thead", {}, make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...rows.map((cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, cell)))))));
}

const code = (text) => make("code", {}, text);

function fields(schema, whole) {
  const properties = Object.entries(resolved(schema, whole).properties || {});
  return properties.map(([name, value]) => [code(name), kind(value), value.description || ""]);
}

function operation(verb, path, said, whole, things) {
  const parameters = (said.parameters || []).map((one) => [code(one.name), one.in, kind(one.schema), one.required ? "yes" : "no"]);
  const answer = said.responses["200"] && said.responses["200"].content && said.responses["200"].content["application/json"];
  const refusals = Object.entries(said.responses).filter(([status]) => status !== "200").map(([status, one]) => [status, one.description]);
  return make("article", { className: "card" },
    make("h2", {}, make("span", { className: "verb" }, verb.toUpperCase()), " ", code(path)),
    make("p", {}, `${said.summary}.`), said.description ? make("p", { className: "faint" }, said.description) : null,
    make("pre", { tabIndex: 0 }, example(verb, path, said, things)),
    parameters.length ? make("h3", {}, "Parameters") : null,
    parameters.length ? table(["name", "in", "kind", "required"], parameters) : null,
    answer ? make("h3", {}, "Answer") : null,
    answer ? table(["field", "kind", "what"], fields(answer.schema, whole)) : null,
    make("details", {}, make("summary", {}, "Refusals"), table(["status", "why"], refusals)));
}

startTheme();
Promise.all([ask("/openapi.json"), known()]).then(([whole, things]) => {
  byId("runs-link").hidden = !things.runs;
  byId("token-hint").hidden = !things.token;
  const found = Object.entries(whole.paths).flatMap(([path, verbs]) => Object.entries(verbs).map(([verb, said]) => operation(verb, path, said, whole, things)));
  const parts = Object.entries(whole.components.schemas).filter(([name, schema]) => schema.properties && !name.includes("Validation"));
  const described = parts.map(([name, schema]) => make("article", { className: "card" }, make("h2", {}, code(name)),
    schema.description ? make("p", { className: "faint" }, schema.description) : null,
    table(["field", "kind", "what"], fields(schema, whole))));
  byId("operations").replaceChildren(...found, make("h1", {}, "Parts of answers"), ...described);
}).catch((error) => {
  byId("operations").replaceChildren();
  alertWith(error.status === 401 ? "This server asks for a token: sign in on its first page, then come back." : error.message);
});
