"""The server's page in a browser: images come in every way, versions are compared, and every trouble is told.

With ENDOCIL_SCREENSHOTS set to a folder, every state is also left there as a picture."""

import base64
import csv
import io
import os
import shlex
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser.test_page_in_browser import CONTRASTS
from made_runs import settings_of, write_run
from PIL import Image
from present import present
from untrained import CLASSES, write_untrained

pytest.importorskip("fastapi")

from serve.conftest import Running

from endocil.datasets.synthetic import render
from endocil.model.model import Model
from endocil.reports.page import write_page
from endocil.runs.records import read_run
from endocil.serve.guard import Limits
from endocil.serve.monitoring import Log
from endocil.serve.served_models import ServedModels
from endocil.serve.served_runs import Runs
from endocil.serve.service import Service

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.slow
TOKEN = "a-token-that-is-long-enough"
DISCLAIMER = "Research software, not for clinical use."
WAIT = 15_000
DROP = """([files, kind]) => {
  const transfer = new DataTransfer();
  for (const [name, data] of files) {
    const bytes = Uint8Array.from(atob(data), one => one.charCodeAt(0));
    transfer.items.add(new File([bytes], name, { type: "image/png" }));
  }
  const how = { bubbles: true, cancelable: true };
  document.getElementById("drop").dispatchEvent(kind === "paste"
    ? new ClipboardEvent("paste", { ...how, clipboardData: transfer })
    : new DragEvent(kind, { ...how, dataTransfer: transfer }));
}"""

WANTED = """() => document.getElementById("files").addEventListener("click", event => {
  event.preventDefault();  // the window of the system that would open now cannot be used by a test
  window.wanted = true;
})"""


def picture(finding: str, index: int = 0, size: int = 128) -> bytes:
    file = io.BytesIO()
    Image.fromarray(render(0, finding, index, size)).save(file, "PNG")
    return file.getvalue()


POLYP, CECUM = picture("polyp"), picture("cecum")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_untrained(folder / "v1.endocil", seed=0, name="colon, spring")
    write_untrained(folder / "v2.endocil", seed=7, name="colon, summer")
    (folder / "damaged.endocil").write_bytes((folder / "v1.endocil").read_bytes()[:-500])
    return folder


@pytest.fixture(scope="module")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from made_runs import CLASSES as REPORTED
    from made_runs import TASK_SIZES, _predictions

    from endocil.metrics.metrics import summarise

    folder = tmp_path_factory.mktemp("served-runs")
    for method in ("icarl", "endocil"):
        stored = [_predictions(method, 0, REPORTED, TASK_SIZES, t) for t in range(len(TASK_SIZES))]
        run = write_run(folder / f"{method}-seed0", settings_of(method, 0), summarise(stored))
        write_page([read_run(run)], run / "report.html", title=f"endocil run {method}-seed0")
    return folder


@pytest.fixture(scope="module")
def started(models: Path, runs_folder: Path) -> Iterator[Callable[..., Running]]:
    servers: dict[tuple[Any, ...], Running] = {}

    def start(*names: str, token: str | None = None, runs: Path | None = runs_folder) -> Running:
        key = (*names, token, runs)
        if key not in servers:
            limits = Limits(upload_megabytes=1)
            service = Service(ServedModels.load([models / name for name in names], models), Runs(runs), limits)
            servers[key] = Running(service, limits, Log(io.StringIO()), token)
        return servers[key]

    yield start
    for server in servers.values():
        server.stop()


@pytest.fixture
def opened(browser: "Browser", started: Callable[..., Running]) -> Iterator[Callable[..., "Page"]]:
    """opened("v1.endocil", at="#models", width=390): the page of a server. At the end nothing may have been asked from
    elsewhere, and the console may tell of refused requests only."""
    asked, said, contexts, servers = [], [], [], []

    def show(*names: str, at: str = "", width: int = 1200, token: str | None = None, **how: Any) -> "Page":
        server = started(*(names or ("v1.endocil", "v2.endocil")), token=token, runs=how.pop("runs", None))
        servers.append(server.address)
        context = browser.new_context(viewport={"width": width, "height": 900}, **how)
        context.set_default_timeout(WAIT)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"{server.address}/{at}")
        return page

    yield show
    for context in contexts:
        context.close()
    assert [url for url in asked if not url.startswith((*servers, "blob:", "data:"))] == []
    assert [text for text in said if not text.startswith("Failed to load resource")] == []


Opened = Callable[..., "Page"]


def give(page: "Page", *files: tuple[str, bytes], kind: str = "drop") -> None:
    page.wait_for_selector("#model option", state="attached")
    page.evaluate(DROP, [[[name, base64.b64encode(data).decode()] for name, data in files], kind])


def until(page: "Page", holds: str) -> None:
    """Asked from outside: the page's policy lets nothing be evaluated inside it, not even by a test."""
    end = time.monotonic() + WAIT / 1000
    while not page.evaluate(holds):
        assert time.monotonic() < end, f"never: {holds}"
        page.wait_for_timeout(30)


def until_held(page: "Page", held: list["Route"]) -> None:
    end = time.monotonic() + WAIT / 1000
    while not held:
        assert time.monotonic() < end
        page.wait_for_timeout(30)


def answered(page: "Page", n: int) -> None:
    until(page, f"document.querySelectorAll('#results .predictions, #results .problem').length === {n}")


def shot(page: "Page", name: str) -> None:
    folder = os.environ.get("ENDOCIL_SCREENSHOTS")
    if folder:
        page.wait_for_timeout(300)
        page.screenshot(path=str(Path(folder, f"{name}.png")), full_page=True)


def fits(page: "Page") -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def test_before_the_first_image_the_page_says_what_to_do(opened: Opened) -> None:
    page = opened()
    page.wait_for_selector("#drop")
    assert page.inner_text(".disclaimer") == DISCLAIMER
    assert "Drop images here, paste them, or" in page.inner_text("#drop")
    assert "up to 1 MB each. Nothing is stored." in page.inner_text("#allowed")
    assert page.locator("#bar").is_hidden()
    shot(page, "empty")


def test_a_dropped_image_is_answered_as_the_model_does(opened: Opened, models: Path, tmp_path: Path) -> None:
    page = opened("v1.endocil")
    give(page, ("Jane Doe.png", POLYP))
    answered(page, 1)
    (tmp_path / "polyp.png").write_bytes(POLYP)
    predicted = Model.load(models / "v1.endocil").predict([tmp_path / "polyp.png"])
    ((name, share), *_) = predicted.top(1)[0]
    first = page.locator(".probabilities li").first
    assert first.locator(".name").inner_text() == name
    assert first.locator(".value").inner_text() == f"{100 * share:.1f} %"
    assert page.locator(".file").inner_text() == "Jane Doe.png"
    until(page, "[...document.querySelectorAll('.exemplars img')].every(one => one.naturalWidth === 32)")
    assert page.locator(".exemplars li").count() == 3
    assert page.locator(".flag", has_text="Out of distribution").count() == int(
        present(predicted.out_of_distribution)[0]
    )
    assert page.locator("#status").inner_text().startswith("1 image predicted")
    assert page.locator("#compare-label").is_hidden()  # nothing to compare with
    shot(page, "one-image")


def test_images_come_by_pasting_and_by_the_keyboard_too(opened: Opened, tmp_path: Path) -> None:
    page = opened()
    give(page, ("pasted.png", POLYP), kind="paste")
    answered(page, 1)
    (tmp_path / "chosen.png").write_bytes(CECUM)
    page.evaluate(WANTED)
    page.locator("#choose").press("Enter")
    until(page, "window.wanted")
    page.set_input_files("#files", tmp_path / "chosen.png")
    answered(page, 2)
    assert page.locator(".file").all_inner_texts() == ["pasted.png", "chosen.png"]
    page.get_by_role("button", name="Clear").press("Enter")
    assert page.locator("#results li").count() == 0
    assert page.evaluate("document.activeElement.id") == "choose"


def drop_from_disk(page: "Page", *paths: Path) -> None:
    """As a hand does it: with real files and folders, which no script can make."""
    page.wait_for_selector("#model option", state="attached")
    box = page.locator("#drop").bounding_box()
    assert box is not None
    session = page.context.new_cdp_session(page)
    for kind in ("dragEnter", "dragOver", "drop"):
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        where = {"x": box["x"] + 20, "y": box["y"] + 10}
        session.send("Input.dispatchDragEvent", {"type": kind, **where, "data": data})


def test_a_dropped_folder_is_opened_and_does_not_hold_up_other_images(opened: Opened, tmp_path: Path) -> None:
    inner = tmp_path / "study" / "second"
    inner.mkdir(parents=True)
    (tmp_path / "study" / "image-10.png").write_bytes(POLYP)
    (tmp_path / "study" / "image-9.PNG").write_bytes(CECUM)
    (inner / "image-1.png").write_bytes(CECUM)
    (inner / "notes.txt").write_bytes(b"no picture")
    (inner / "._image-1.png").write_bytes(b"a note of the system")
    (tmp_path / "alone.png").write_bytes(POLYP)
    page = opened()
    drop_from_disk(page, tmp_path / "study", tmp_path / "alone.png")
    answered(page, 4)
    names = ["alone.png", "study/image-9.PNG", "study/image-10.png", "study/second/image-1.png"]
    assert page.locator(".file").all_inner_texts() == names
    assert page.locator("#results .predictions").count() == 4
    assert page.inner_text("#alert") == page.inner_text("#searching") == ""


def test_a_folder_without_images_says_so(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "notes.txt").write_bytes(b"no picture")
    page = opened()
    drop_from_disk(page, tmp_path / "study")
    page.wait_for_selector("#alert .problem")
    assert page.inner_text("#alert") == "There are no images in the folder."
    assert page.locator("#results > li").count() == 0


def test_more_images_than_the_page_takes_are_left_out_and_it_says_so(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    for number in range(1002):
        (tmp_path / "study" / f"{number}.png").write_bytes(b"x")
    page = opened()
    page.route("**/predict?*", lambda route: None)  # never answered
    page.wait_for_selector("#model option", state="attached")  # it takes no image before it knows the limits
    drop_from_disk(page, tmp_path / "study")
    page.wait_for_selector("#alert .problem")
    assert page.inner_text("#alert") == "The page takes 1,000 images at a time; others were left out."
    assert page.locator("#results > li").count() == 1000
    assert page.locator(".file").last.inner_text() == "study/999.png"
    give(page, ("polyp.png", POLYP), kind="paste")
    assert page.locator("#results > li").count() == 1000


def test_a_file_that_has_changed_since_does_not_hold_up_the_others(opened: Opened, tmp_path: Path) -> None:
    changing, fine = tmp_path / "changing.png", tmp_path / "fine.png"
    changing.write_bytes(POLYP)
    fine.write_bytes(CECUM)
    page = opened()
    page.wait_for_selector("#model option", state="attached")
    page.set_input_files("#files", [changing, fine])
    answered(page, 2)
    changing.write_bytes(CECUM)
    os.utime(changing, (2e9, 2e9))
    page.select_option("#model", index=1)
    page.wait_for_selector("#results .problem")
    answered(page, 2)
    assert page.inner_text("#alert") == ""
    assert page.inner_text("#results .problem").startswith("Cannot be read: it has changed since it was chosen")
    assert page.inner_text("#status").endswith("1 error")
    assert page.locator("#results > li").nth(1).locator(".predictions").count() == 1
    shot(page, "changed-file")


def test_what_is_too_much_for_one_request_is_asked_in_parts(opened: Opened) -> None:
    page = opened()

    def at_most_one(route: "Route") -> None:
        images = (route.request.post_data_buffer or b"").count(b'name="images"')
        route.continue_() if images == 1 else refusing(413, "too-large", "too many pixels in all")(route)

    page.route("**/predict?*", at_most_one)
    give(page, ("polyp.png", POLYP), ("none.png", b"no picture"), ("cecum.png", CECUM))
    answered(page, 3)
    assert page.locator("#results > li").nth(1).locator(".problem").count() == 1
    assert page.locator("#results .predictions").count() == 2
    page.unroute("**/predict?*")
    page.route("**/predict?*", refusing(413, "too-large", "too many pixels in all"))
    give(page, ("polyp.png", POLYP))
    answered(page, 4)
    assert page.locator("#results .problem").last.inner_text() == "Too many pixels in all."


def test_the_place_to_drop_lights_up(opened: Opened) -> None:
    page = opened()
    give(page, ("a.png", POLYP), kind="dragover")
    assert page.locator("#drop.over").count() == 1
    shot(page, "dragging")
    give(page, ("a.png", POLYP))
    assert page.locator("#drop.over").count() == 0
    answered(page, 1)


def test_two_versions_answer_on_the_same_image_and_can_be_switched(opened: Opened) -> None:
    page = opened()
    give(page, ("polyp.png", POLYP), ("cecum.png", CECUM))
    answered(page, 2)
    alone = page.locator(".probabilities").first.inner_text()
    page.select_option("#compare", index=2)
    page.wait_for_selector(".model-name")
    answered(page, 2)
    assert page.locator("#results > li").first.locator(".prediction").count() == 2
    who = page.locator("#results > li").first.locator(".model-name").all_inner_texts()
    assert [text.partition(" (")[0] for text in who] == ["colon, spring, version 1", "colon, summer, version 1"]
    assert page.locator(".probabilities").first.inner_text() == alone
    disagree = page.locator("#results > li").evaluate_all("all => all.map(one => one.textContent.includes('disagree'))")
    assert disagree == [True, True]  # one says '=1+1', the other '<b>cecum</b>'
    shot(page, "compare")
    page.select_option("#compare", value="")
    page.select_option("#model", index=1)
    until(page, "!document.querySelector('.model-name')")
    answered(page, 2)
    assert page.locator(".probabilities").first.inner_text() != alone


def test_results_are_saved_as_csv(opened: Opened) -> None:
    page = opened()
    give(page, ("=cmd.png", POLYP), ('two, "quoted".png', CECUM), ("none.png", b"no picture"))
    answered(page, 3)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").click()
    assert download.value.suggested_filename == "endocil-predictions.csv"
    text = Path(download.value.path()).read_text("utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["image"] for row in rows] == ["'=cmd.png", 'two, "quoted".png', "none.png"]
    first = page.locator(".probabilities li").first
    assert rows[0]["class"].removeprefix("'") == first.locator(".name").inner_text()
    assert f"{100 * float(rows[0]['probability']):.1f} %" == first.locator(".value").inner_text()
    assert {row["disclaimer"] for row in rows} == {DISCLAIMER}
    assert rows[2]["error"].startswith("Not a BMP, JPEG, PNG")
    assert len(rows[0]["digest"]) == 64


def test_the_prediction_set_is_shown_and_saved(opened: Opened) -> None:
    page = opened()

    def with_set(route: "Route") -> None:
        answer = route.fetch()
        body = answer.json()
        for prediction in (one for image in body["images"] for one in image["predictions"]):
            prediction["prediction_set"] = ["polyp", "z-line"]
        route.fulfill(response=answer, json=body)

    page.route("**/predict*", with_set)
    give(page, ("polyp.png", POLYP))
    answered(page, 1)
    assert "Not excluded at a coverage of 90 %: polyp, z-line" in page.inner_text("#results")
    (row,) = csv_rows(page)
    assert (row["prediction_set"], row["coverage"]) == ("polyp | z-line", "0.9")


def test_names_are_text_whatever_they_look_like(opened: Opened) -> None:
    page = opened()
    give(page, ("<img src=x onerror=alert(1)>.png", POLYP))
    answered(page, 1)
    assert page.locator(".file").inner_text() == "<img src=x onerror=alert(1)>.png"
    page.goto(page.url.partition("#")[0] + "#models")
    page.wait_for_selector(".card table")
    assert CLASSES[2] == "<b>cecum</b>"
    assert page.locator("tbody th").nth(2).inner_text() == "<b>cecum</b>"


def test_while_the_server_thinks_the_page_says_so(opened: Opened) -> None:
    page = opened()
    held: list[Route] = []
    page.route("**/predict?*", lambda route: held.append(route))
    give(page, ("polyp.png", POLYP), ("cecum.png", CECUM))
    page.wait_for_selector(".waiting")
    assert page.locator("#progress").is_visible()
    assert page.locator("#status").inner_text() == "0 of 2 images predicted"
    shot(page, "loading")
    for route in held:
        route.continue_()
    answered(page, 2)
    assert page.locator("#progress").is_hidden()


def test_troubles_with_single_images_stand_with_them(opened: Opened) -> None:
    page = opened()
    large = picture("polyp", size=256) + bytes(1_100_000)
    files = [("notes.txt", b"no picture"), ("empty.png", b""), ("large.png", large), ("fine.png", POLYP)]
    give(page, *files)
    answered(page, 4)
    problems = page.locator("#results .problem").all_inner_texts()
    assert problems == [
        "Not a BMP, JPEG, PNG, TIFF or WebP image, or damaged.",
        "The file is empty.",
        "Larger than 1.0 MB, the limit of this server.",
    ]
    flagged = "1 out of distribution, " if page.locator(".flag", has_text="Out of distribution").count() else ""
    assert page.locator("#status").inner_text() == f"1 image predicted, {flagged}3 errors"
    shot(page, "problems")


def refusing(status: int, code: str, message: str, **headers: str) -> Callable[["Route"], None]:
    body = f'{{"disclaimer": "{DISCLAIMER}", "error": {{"code": "{code}", "message": "{message}"}}}}'
    return lambda route: route.fulfill(status=status, content_type="application/json", headers=headers, body=body)


def test_a_busy_server_is_asked_again(opened: Opened) -> None:
    page = opened()
    left = [refusing(429, "busy", "256 images are waiting already", **{"Retry-After": "1"})]
    page.route("**/predict?*", lambda route: left.pop()(route) if left else route.continue_())
    give(page, ("polyp.png", POLYP))
    until(page, "document.getElementById('status').textContent.includes('busy; trying again')")
    shot(page, "busy")
    answered(page, 1)
    assert "busy" not in page.inner_text("#status")


def test_a_server_that_fails_or_is_gone_can_be_asked_again(opened: Opened) -> None:
    page = opened()
    page.route("**/predict?*", refusing(500, "failed", "the server failed; see its log"))
    give(page, ("polyp.png", POLYP))
    page.wait_for_selector("#alert .problem")
    assert "The server failed; see its log." in page.inner_text("#alert")
    assert page.locator("#progress").is_hidden()  # nothing is under way
    page.unroute("**/predict?*")
    page.route("**/predict?*", lambda route: route.abort())
    page.get_by_role("button", name="Try again").click()
    until(page, "document.getElementById('alert').textContent.includes('cannot be reached')")
    assert page.locator("#results .faint").inner_text() == "Not predicted yet."
    shot(page, "unreachable")
    page.unroute("**/predict?*")
    page.get_by_role("button", name="Try again").click()
    answered(page, 1)
    assert page.inner_text("#alert") == ""


def test_a_page_that_cannot_begin_says_so_and_can_try_again(opened: Opened) -> None:
    page = opened()
    page.route("**/api/v1/models", lambda route: route.abort())
    page.reload()
    page.wait_for_selector("#alert .problem")
    assert "cannot be reached" in page.inner_text("#alert")
    page.unroute("**/api/v1/models")
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector("#model option", state="attached")
    assert page.inner_text("#alert") == ""


def test_a_token_opens_the_page(opened: Opened) -> None:
    page = opened("v1.endocil", token=TOKEN)
    page.wait_for_selector("#token")
    assert page.locator("#images").is_hidden()
    shot(page, "sign-in")
    page.fill("#token", "not the right token")
    page.keyboard.press("Enter")
    page.wait_for_selector("#alert .problem")
    assert page.inner_text("#alert") == "This is not the token of this server."
    shot(page, "wrong-token")
    page.fill("#token", TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_selector("#drop")
    give(page, ("polyp.png", POLYP))
    answered(page, 1)
    until(page, "[...document.querySelectorAll('.exemplars img')].every(one => one.naturalWidth === 32)")
    assert page.evaluate("document.cookie") == ""  # no script can read it
    page.context.clear_cookies()
    give(page, ("cecum.png", CECUM))
    page.wait_for_selector("#token")
    assert page.inner_text("#alert") == "The session has ended. Enter the token again."
    shot(page, "signed-out")
    page.fill("#token", TOKEN)
    page.keyboard.press("Enter")
    answered(page, 2)  # the images have waited
    assert page.inner_text("#alert") == ""


def test_a_browser_that_keeps_no_cookie_is_told(opened: Opened) -> None:
    page = opened("v1.endocil", token=TOKEN)
    page.route("**/session", lambda route: route.fulfill(json={"disclaimer": DISCLAIMER, "status": "ok"}))
    page.fill("#token", TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_selector("#alert .problem")
    assert page.inner_text("#alert").startswith("The token is right, but the browser did not keep the session.")
    assert page.locator("#login").is_visible()
    assert page.evaluate("document.activeElement.id") == "token"
    shot(page, "no-cookie")


@pytest.fixture
def exchanging(browser: "Browser", models: Path) -> Iterator[tuple["Page", Running]]:
    """A page whose server has v1 alone, and is its own: what it serves changes."""
    limits = Limits()
    server = Running(
        Service(ServedModels.load([models / "v1.endocil"], models), Runs(None), limits), limits, Log(io.StringIO())
    )
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(WAIT)
    page = context.new_page()
    page.goto(f"{server.address}/#models")
    page.wait_for_selector(".card table")
    yield page, server
    context.close()
    server.stop()


def put_into_service(page: "Page", name: str) -> None:
    page.get_by_label("Other model file").select_option(name)
    page.get_by_role("button", name="Replace").press("Enter")


def test_models_show_their_cards_and_can_be_exchanged(exchanging: tuple["Page", Running], models: Path) -> None:
    page, _ = exchanging
    digest = Model.load(models / "v1.endocil").digest
    assert page.locator(".card h2").inner_text() == f"colon, spring, version 1 model-1, {digest[:8]} No gate"
    assert page.locator(".card tbody tr").count() == len(CLASSES)
    shot(page, "models")
    put_into_service(page, "damaged.endocil")
    page.wait_for_selector("#alert .problem")
    assert "v1.endocil stays in use" in page.inner_text("#alert")
    focus = "document.activeElement.textContent"
    assert page.evaluate(focus) == "Replace"
    shot(page, "invalid-model")
    put_into_service(page, "v2.endocil")
    until(page, "document.getElementById('models-status').textContent === 'v2.endocil is now in use as model-1.'")
    assert page.locator(".card h2").inner_text().startswith("colon, summer")
    assert page.get_by_label("Other model file").input_value() == "v2.endocil"
    assert page.evaluate(focus) == "Replace"
    assert page.inner_text("#alert") == ""
    shot(page, "exchanged")
    page.get_by_role("link", name="Images").click()
    assert page.locator("#model option").all_inner_texts()[0].startswith("colon, summer")


def csv_rows(page: "Page") -> list[dict[str, str]]:
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").click()
    return list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text("utf-8-sig"))))


def test_after_an_exchange_the_images_are_asked_again(exchanging: tuple["Page", Running], models: Path) -> None:
    page, _ = exchanging
    page.get_by_role("link", name="Images").click()
    give(page, ("polyp.png", POLYP), ("cecum.png", CECUM))
    answered(page, 2)
    before = page.locator(".probabilities").all_inner_texts()
    page.get_by_role("link", name="Models").click()
    put_into_service(page, "v2.endocil")
    until(page, "document.getElementById('models-status').textContent.startsWith('v2.endocil is now')")
    page.get_by_role("link", name="Images").click()
    answered(page, 2)
    assert page.locator(".probabilities").all_inner_texts() != before
    assert "the model was replaced" in page.inner_text("#status")
    shot(page, "asked-again")
    digest = Model.load(models / "v2.endocil").digest
    told = {(row["model"], row["digest"]) for row in csv_rows(page)}
    assert told == {(f"colon, summer, version 1 ({digest[:8]})", digest)}


def test_an_exchange_by_others_is_noticed_with_the_next_answer(
    exchanging: tuple["Page", Running], models: Path
) -> None:
    page, server = exchanging
    page.get_by_role("link", name="Images").click()
    give(page, ("polyp.png", POLYP))
    answered(page, 1)
    swap = urllib.request.Request(
        f"{server.address}/api/v1/models/model-1",
        b'{"file": "v2.endocil"}',
        {"Content-Type": "application/json"},
        method="PUT",
    )
    urllib.request.urlopen(swap, timeout=30).close()
    first, second = (Model.load(models / name).digest for name in ("v1.endocil", "v2.endocil"))
    assert [(row["model"], row["digest"]) for row in csv_rows(page)] == [
        (f"colon, spring, version 1 ({first[:8]})", first)
    ]
    held: list[Route] = []
    page.route("**/api/v1/models", lambda route: held.append(route))
    give(page, ("cecum.png", CECUM))
    answered(page, 2)
    names = [row["model"] for row in csv_rows(page)]  # of the new model nothing is known yet but its digest
    assert names == [f"colon, spring, version 1 ({first[:8]})", f"model-1 ({second[:8]})"]
    until_held(page, held)
    for route in held:
        route.continue_()
    page.unroute("**/api/v1/models")
    until(page, "document.querySelector('#model option').textContent.startsWith('colon, summer')")
    answered(page, 2)
    told = [(row["image"], row["model"], row["digest"]) for row in csv_rows(page)]
    name = f"colon, summer, version 1 ({second[:8]})"
    assert told == [("polyp.png", name, second), ("cecum.png", name, second)]


def test_runs_are_listed_and_their_reports_open_in_a_sandbox(opened: Opened, runs_folder: Path) -> None:
    page = opened(runs=runs_folder)
    page.get_by_role("link", name="Runs").click()
    page.wait_for_selector("#runs-table tbody tr")
    assert page.locator("#runs-table tbody th").all_inner_texts() == ["endocil-seed0", "icarl-seed0"]
    shot(page, "runs")
    with page.expect_popup() as popup:
        page.get_by_role("link", name="endocil-seed0").click()
    report = popup.value
    report.wait_for_selector("h1")
    assert report.inner_text("h1") == "endocil run endocil-seed0"
    assert report.evaluate("getComputedStyle(document.body).maxWidth") != "none"  # its style is let in
    assert report.locator("#theme").is_visible()  # and its script
    assert report.evaluate("window.origin") == "null"
    fetched = report.evaluate(
        "address => fetch(address).then(() => 'reached', () => 'blocked')", f"{page.url.split('#')[0]}api/v1/models"
    )
    assert fetched == "blocked"


def test_runs_that_are_not_listed_are_counted(opened: Opened, runs_folder: Path) -> None:
    page = opened(runs=runs_folder)

    def more(route: "Route") -> None:
        route.fulfill(json={**route.fetch().json(), "left_out": 1234})

    page.route("**/api/v1/runs", more)
    page.get_by_role("link", name="Runs").click()
    page.wait_for_selector("#runs-table tbody tr")
    told = "2 finished runs; a name leads to the report. 1,234 others are not listed."
    assert page.inner_text("#runs-status") == told


def test_a_model_that_flags_nothing_as_unlike_says_so(opened: Opened) -> None:
    page = opened("v1.endocil")

    def without(route: "Route") -> None:
        told = route.fetch().json()
        told["images"][0]["predictions"][0]["out_of_distribution"] = None
        route.fulfill(json=told)

    page.route("**/predict?*", without)
    give(page, ("polyp.png", POLYP))
    answered(page, 1)
    assert "Too few held-out images to flag images as out of distribution" in page.inner_text("#results")


def test_a_folder_without_runs_says_so(opened: Opened, tmp_path: Path) -> None:
    page = opened(runs=tmp_path, at="#runs")
    until(page, "document.getElementById('runs-status').textContent.startsWith('There are no finished runs')")
    shot(page, "no-runs")


def test_the_documentation_lists_every_operation(opened: Opened) -> None:
    page = opened(at="docs")
    page.wait_for_selector("#operations .verb")
    told = page.locator("#operations h2:has(.verb)").all_inner_texts()
    assert "POST /api/v1/predict" in told
    assert len(told) == 11
    assert DISCLAIMER in page.inner_text("header")
    assert page.locator("#runs-link").is_hidden()  # this server has none
    assert "TOKEN" not in page.inner_text("#operations")
    assert "`" not in page.inner_text("#operations")
    assert "The most probable class if it is not given." in page.inner_text("#operations")
    shot(page, "docs")


def test_the_documentation_can_try_a_request(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "polyp.png").write_bytes(POLYP)
    page = opened(at="docs")
    card = page.locator("article.card", has=page.get_by_text("/api/v1/predict", exact=True)).first
    card.get_by_text("Try it").click()
    card.locator("input[type=file]").set_input_files(tmp_path / "polyp.png")
    card.get_by_role("button", name="Send").click()
    card.locator(".answer pre").wait_for()
    assert card.locator(".answer p").inner_text().startswith("200")
    assert '"predictions"' in card.locator(".answer pre").inner_text()
    shot(page, "docs-tried")


def test_the_examples_of_the_documentation_work_as_they_stand(opened: Opened, runs_folder: Path) -> None:
    page = opened(token=TOKEN, runs=runs_folder)
    page.fill("#token", TOKEN)
    page.keyboard.press("Enter")
    page.get_by_role("link", name="API").click()
    page.wait_for_selector("#operations .verb")
    assert page.locator("#token-hint").is_visible()
    examples = page.locator("#operations pre").all_inner_texts()
    assert not [example for example in examples if "{" in example.partition("-d")[0]]
    kinds = {}
    for words in map(shlex.split, examples):
        assert words[0] == "curl"
        headers = [value for flag, value in pairwise(words) if flag == "-H"]
        told = {name: value.replace("$TOKEN", TOKEN) for name, value in (one.split(": ") for one in headers)}
        if "-F" not in words and "-d" not in words:
            asked = urllib.request.Request(words[-1], None, told, method="POST" if "-X" in words else "GET")
            with urllib.request.urlopen(asked, timeout=30) as answer:  # raises where it is refused
                kinds[words[-1].rpartition("/")[2]] = answer.headers.get_content_type()
    assert (kinds["0.png"], kinds["report"], kinds["session"]) == ("image/png", "text/html", "application/json")
    assert len(kinds) == 8
    page.get_by_role("link", name="Runs").click()
    page.wait_for_selector("#runs-table tbody tr")


def drawn(page: "Page", n: int) -> None:
    until(page, f"document.querySelectorAll('#results figure img').length === {n}")


def test_evidence_is_drawn_on_request_over_the_image_in_its_own_size(opened: Opened) -> None:
    page = opened()
    give(page, ("polyp.png", picture("polyp", size=700)))
    answered(page, 1)
    page.select_option("#compare", index=2)
    until(page, "document.querySelectorAll('#results .evidence').length === 2")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/gradcam" in request.url else None)
    button = page.get_by_role("button", name="Show evidence").first
    button.click()
    drawn(page, 1)
    assert len(asked) == 1
    assert page.evaluate("document.querySelector('#results figure img').naturalWidth") == 700
    assert "Evidence for" in page.inner_text("#results figcaption")
    assert fits(page)
    shot(page, "evidence")
    page.get_by_role("button", name="Hide evidence").click()
    drawn(page, 0)
    page.get_by_role("button", name="Show evidence").nth(1).click()
    drawn(page, 1)
    page.get_by_role("button", name="Clear").click()
    drawn(page, 0)


def test_evidence_that_cannot_be_drawn_says_why_and_a_busy_server_is_asked_again(opened: Opened) -> None:
    page = opened()
    give(page, ("polyp.png", POLYP))
    answered(page, 1)
    failing = refusing(500, "failed", "the server failed; see its log")
    page.route("**/gradcam*", failing)
    page.get_by_role("button", name="Show evidence").click()
    until(page, "document.querySelectorAll('#results .evidence .problem').length === 1")
    assert page.inner_text("#results .evidence .problem") == "The server failed; see its log."
    page.unroute("**/gradcam*", failing)
    page.route("**/gradcam*", refusing(429, "busy", "try again", **{"Retry-After": "1"}), times=1)
    page.get_by_role("button", name="Show evidence").click()
    drawn(page, 1)


def test_a_model_without_feature_maps_offers_no_evidence(opened: Opened) -> None:
    page = opened()

    def without(route: "Route") -> None:
        answer = route.fetch()
        models = answer.json()
        models["models"] = [{**model, "gradcam": False} for model in models["models"]]
        route.fulfill(response=answer, json=models)

    page.route("**/models", without)
    page.reload()
    give(page, ("polyp.png", POLYP))
    answered(page, 1)
    assert page.get_by_role("button", name="Show evidence").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_and_everything_fits_a_phone(opened: Opened, runs_folder: Path, scheme: str) -> None:
    page = opened(width=390, color_scheme=scheme, runs=runs_folder)
    page.wait_for_selector("#drop")
    assert fits(page)
    shot(page, f"phone-empty-{scheme}")
    give(page, ("a-very-long-name-of-a-file-that-does-not-fit-into-one-line-of-a-phone.png", POLYP), ("none.png", b"x"))
    page.select_option("#compare", index=2)
    answered(page, 2)
    page.get_by_role("button", name="Show evidence").first.click()
    drawn(page, 1)
    assert fits(page)
    assert page.evaluate(CONTRASTS) == []
    shot(page, f"phone-{scheme}")
    for view in ("models", "runs"):
        page.get_by_role("link", name=view.capitalize()).click()
        page.wait_for_selector(f"#{view} table")
        assert fits(page)
        assert page.evaluate(CONTRASTS) == []
        shot(page, f"phone-{view}-{scheme}")


def test_dark_is_chosen_by_hand_and_kept(opened: Opened) -> None:
    page = opened(color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate(ground) != light
    page.reload()
    assert page.get_by_role("button", name="Light").is_visible()
    assert page.evaluate(ground) != light
    give(page, ("polyp.png", POLYP), ("cecum.png", CECUM))
    answered(page, 2)
    shot(page, "dark")


def test_skipping_to_the_content_stays_in_the_view(opened: Opened) -> None:
    page = opened(at="#models")
    page.wait_for_selector(".card table")
    page.locator(".skip").press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert page.locator("#models").is_visible()
    assert page.url.endswith("#models")


def test_everything_is_reached_by_the_tabulator(opened: Opened) -> None:
    page = opened()
    give(page, ("polyp.png", POLYP))
    answered(page, 1)
    reached = set()
    for _ in range(14):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
    assert {
        "Skip to the content",
        "Images",
        "Models",
        "API",
        "theme",
        "model",
        "compare",
        "choose",
        "save",
        "clear",
    } <= reached
