// The page: which view is shown, who is signed in.
import { ask, signIn } from "/assets/api.js";
import { alertWith, byId, startTheme } from "/assets/dom.js";
import * as images from "/assets/images.js";
import * as models from "/assets/models.js";
import * as runs from "/assets/runs.js";

const VIEWS = ["images", "models", "runs"];
const ENDED = "The sign-in has ended. Give the token again.";
const NOT_KEPT = "The token is right, but the browser has not kept the sign-in. Allow cookies for this address, then sign in again.";
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
    if (told) alertWith(ENDED);
    told = null;
  } else alertWith(error.message, go);
}

// Whether the page could begin.
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
  return told !== null;
}

byId("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  alertWith("");
  try {
    await signIn(byId("token").value);
    byId("token").value = "";
    if (await go()) images.resume();
    else if (!byId("login").hidden) alertWith(NOT_KEPT);
  } catch (error) {
    alertWith(error.status === 401 ? "This is not the token of this server." : error.message);
  }
});

document.addEventListener("signed-out", () => failed({ status: 401 }));
document.addEventListener("models-changed", () => reload().catch(failed));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the part behind # is the name of a view
  byId("main").focus();
});
window.addEventListener("hashchange", go);
startTheme();
images.start();
go();
