// The page: which view is visible, and signing in.
import { request, signIn } from "/assets/api.js";
import { byId, showAlert, startTheme } from "/assets/dom.js";
import * as images from "/assets/images.js";
import * as models from "/assets/models.js";
import * as runs from "/assets/runs.js";

const VIEWS = ["images", "models", "runs"];
const SESSION_ENDED = "The session has ended. Enter the token again.";
const NO_COOKIE = "The token is right, but the browser did not keep the session. Allow cookies for this address, then sign in again.";
let served = null; // the models, files and limits of the server

const currentView = () => { const name = location.hash.slice(1); return VIEWS.includes(name) ? name : "images"; };

function showView(name) {
  ["login", ...VIEWS].forEach((view) => { byId(view).hidden = view !== name; });
  document.querySelectorAll("[data-view]").forEach((link) => {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
}

async function reload() {
  served = await request("/models");
  byId("runs-link").hidden = !served.runs;
  images.show(served);
  if (currentView() === "models") await models.show(served, reload);
}

function handleError(error) {
  if (error.status === 401) {
    showView("login");
    byId("token").focus();
    if (served) showAlert(SESSION_ENDED);
    served = null;
  } else showAlert(error.message, open);
}

// Returns whether the server could be read.
async function open() {
  showAlert("");
  try {
    if (!served || currentView() === "models") await reload();
    showView(currentView());
    if (currentView() === "runs") await runs.show();
  } catch (error) {
    if (error.status !== 401) showView(currentView());
    handleError(error);
  }
  return served !== null;
}

byId("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  showAlert("");
  try {
    await signIn(byId("token").value);
    byId("token").value = "";
    if (await open()) images.resume();
    else if (!byId("login").hidden) showAlert(NO_COOKIE);
  } catch (error) {
    showAlert(error.status === 401 ? "This is not the token of this server." : error.message);
  }
});

document.addEventListener("signed-out", () => handleError({ status: 401 }));
document.addEventListener("models-changed", () => reload().catch(handleError));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment is the name of a view
  byId("main").focus();
});
window.addEventListener("hashchange", open);
startTheme();
images.start();
open();
