// The page: which view is shown, who is signed in.
import { ask, signIn } from "/assets/api.js";
import { alertWith, byId, startTheme } from "/assets/dom.js";
import * as images from "/assets/images.js";
import * as models from "/assets/models.js";
import * as runs from "/assets/runs.js";

const VIEWS = ["images", "models", "runs"];
let told = null;

const wanted = () => { const name = location.hash.slice(1); return VIEWS.includes(name) ? name : "images"; };

function only(name) {
  ["login", ...VIEWS].forEach((one) => { byId(one).hidden = one !== name; });
  document.querySelectorAll("[data-view]").forEach((link) => {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
}

async function reload() {
  told = await ask("/models");
  byId("runs-link").hidden = !told.runs;
  images.show(told);
  if (wanted() === "models") await models.show(told, reload);
}

function failed(error) {
  if (error.status === 401) {
    only("login");
    byId("token").focus();
  } else alertWith(error.message, go);
}

async function go() {
  alertWith("");
  try {
    if (!told || wanted() === "models") await reload();
    only(wanted());
    if (wanted() === "runs") await runs.show();
  } catch (error) {
    if (error.status !== 401) only(wanted());
    failed(error);
  }
}

byId("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  alertWith("");
  try {
    await signIn(byId("token").value);
    byId("token").value = "";
    await go();
  } catch (error) {
    alertWith(error.status === 401 ? "This is not the token of this server." : error.message);
  }
});

document.addEventListener("signed-out", () => failed({ status: 401 }));
window.addEventListener("hashchange", go);
startTheme();
images.start();
go();
