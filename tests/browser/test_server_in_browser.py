"""The server's page in a browser: images come in every way, versions are compared, and every trouble is told.

With ENDOCIL_SCREENSHOTS set to a folder, every state is also left there as a picture."""

import base64
import csv
import io
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser.test_page_in_browser import CONTRASTS
from PIL import Image
from report.conftest import settings_of, write_run
from untrained import CLASSES, write_untrained

pytest.importorskip("fastapi")

from serve.conftest import Running

from endocil.bundle.model import Bundle
from endocil.datasets.synthetic import render
from endocil.report import read_run, write_page
from endocil.serve.limits import Limits
from endocil.serve.logs import Log
from endocil.serve.service import service_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

TOKEN = "a-token-that-is-long-enough"
NOTICE = "Research software, not for clinical use."
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
    from report.conftest import CLASSES as REPORTED
    from report.conftest import TASK_SIZES, _predictions

    from endocil.metrics import summarise

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
            service = service_of([models / name for name in names], models, runs, limits)
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


def answered(page: "Page", n: int) -> None:
    until(page, f"document.querySelectorAll('#results .answers, #results .problem').length === {n}")


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
    assert page.inner_text(".notice") == NOTICE
    assert "Drop images here, paste them, or" in page.inner_text("#drop")
    assert "up to 1 MB each. Nothing is kept." in page.inner_text("#allowed")
    assert page.locator("#bar").is_hidden()
    shot(page, "empty")


def test_a_dropped_image_is_answered_as_the_bundle_does(opened: Opened, models: Path, tmp_path: Path) -> None:
    page = opened("v1.endocil")
    give(page, ("Jane Doe.png", POLYP))
    answered(page, 1)
    (tmp_path / "polyp.png").write_bytes(POLYP)
    predicted = Bundle.load(models / "v1.endocil").predict([tmp_path / "polyp.png"])
    ((name, share), *_) = predicted.top(1)[0]
    first = page.locator(".shares li").first
    assert first.locator(".name").inner_text() == name
    assert first.locator(".value").inner_text() == f"{100 * share:.1f} %"
    assert page.locator(".file").inner_text() == "Jane Doe.png"
    until(page, "[...document.querySelectorAll('.near img')].every(one => one.naturalWidth === 32)")
    assert page.locator(".near li").count() == 3
    assert page.locator(".flag", has_text="Unlike").count() == int(predicted.unlike[0])
    assert page.locator("#status").inner_text().startswith("1 image answered")
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
    alone = page.locator(".shares").first.inner_text()
    page.select_option("#compare", index=2)
    page.wait_for_selector(".who")
    answered(page, 2)
    assert page.locator("#results > li").first.locator(".answer").count() == 2
    who = page.locator("#results > li").first.locator(".who").all_inner_texts()
    assert [text.partition(" (")[0] for text in who] == ["colon, spring", "colon, summer"]
    assert page.locator(".shares").first.inner_text() == alone
    disagree = page.locator("#results > li").evaluate_all(
        "all => all.map(one => one.textContent.includes('disagree'))"
    )
    assert disagree == [True, True]  # one says '=1+1', the other '<b>cecum</b>'
    shot(page, "compare")
    page.select_option("#compare", value="")
    page.select_option("#model", index=1)
    until(page, "!document.querySelector('.who')")
    answered(page, 2)
    assert page.locator(".shares").first.inner_text() != alone


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
    first = page.locator(".shares li").first
    assert rows[0]["class"].removeprefix("'") == first.locator(".name").inner_text()
    assert f"{100 * float(rows[0]['probability']):.1f} %" == first.locator(".value").inner_text()
    assert {row["notice"] for row in rows} == {NOTICE}
    assert rows[2]["problem"].startswith("not a BMP, JPEG, PNG")
    assert len(rows[0]["bundle"]) == 64


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
    assert page.locator("#status").inner_text() == "0 of 2 images"
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
        "not a BMP, JPEG, PNG, TIFF or WebP image, or damaged",
        "The file is empty.",
        "Larger than 1.0 MB; this server takes no more.",
    ]
    assert page.locator("#status").inner_text() == "1 image answered, 3 problems"
    shot(page, "problems")


def refusing(status: int, code: str, message: str, **headers: str) -> Callable[["Route"], None]:
    body = f'{{"notice": "{NOTICE}", "error": {{"code": "{code}", "message": "{message}"}}}}'
    return lambda route: route.fulfill(
        status=status, content_type="application/json", headers=headers, body=body
    )


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
    page.route("**/predict?*", refusing(500, "failed", "the server failed; its log says where"))
    give(page, ("polyp.png", POLYP))
    page.wait_for_selector("#alert .problem")
    assert "the server failed; its log says where" in page.inner_text("#alert")
    page.unroute("**/predict?*")
    page.route("**/predict?*", lambda route: route.abort())
    page.get_by_role("button", name="Try again").click()
    until(page, "document.getElementById('alert').textContent.includes('cannot be reached')")
    assert page.locator("#results .faint").inner_text() == "Not answered yet."
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
    until(page, "[...document.querySelectorAll('.near img')].every(one => one.naturalWidth === 32)")
    assert page.evaluate("document.cookie") == ""  # no script can read it
    page.context.clear_cookies()
    page.select_option("#model", index=0)
    give(page, ("cecum.png", CECUM))
    page.wait_for_selector("#token")


def test_models_show_their_cards_and_can_be_exchanged(browser: "Browser", models: Path) -> None:
    limits = Limits()
    server = Running(service_of([models / "v1.endocil"], models, None, limits), limits, Log(io.StringIO()))
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(WAIT)
    page = context.new_page()
    page.goto(f"{server.address}/#models")
    page.wait_for_selector(".card table")
    assert page.locator(".card h2").inner_text() == "colon, spring"
    assert page.locator(".card tbody tr").count() == len(CLASSES)
    shot(page, "models")
    page.get_by_label("Another bundle").select_option("damaged.endocil")
    page.get_by_role("button", name="Put into service").click()
    page.wait_for_selector("#alert .problem")
    assert "v1.endocil goes on" in page.inner_text("#alert")
    shot(page, "refused-bundle")
    page.get_by_label("Another bundle").select_option("v2.endocil")
    page.get_by_role("button", name="Put into service").click()
    until(page, "document.querySelector('.card h2').textContent === 'colon, summer'")
    assert page.inner_text("#models-status") == "v2.endocil answers now."
    assert page.inner_text("#alert") == ""
    page.get_by_role("link", name="Images").click()
    assert page.locator("#model option").all_inner_texts()[0].startswith("colon, summer")
    context.close()
    server.stop()


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
        "address => fetch(address).then(() => 'reached', () => 'blocked')",
        f"{page.url.split('#')[0]}api/v1/models",
    )
    assert fetched == "blocked"


def test_a_folder_without_runs_says_so(opened: Opened, tmp_path: Path) -> None:
    page = opened(runs=tmp_path, at="#runs")
    until(page, "document.getElementById('runs-status').textContent.startsWith('There are no finished runs')")
    shot(page, "no-runs")


def test_the_documentation_lists_every_operation(opened: Opened) -> None:
    page = opened(at="docs")
    page.wait_for_selector("#operations .verb")
    told = page.locator("#operations h2:has(.verb)").all_inner_texts()
    assert "POST /api/v1/predict" in told
    assert len(told) == 10
    assert NOTICE in page.inner_text("header")
    shot(page, "docs")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_and_everything_fits_a_phone(
    opened: Opened, runs_folder: Path, scheme: str
) -> None:
    page = opened(width=390, color_scheme=scheme, runs=runs_folder)
    page.wait_for_selector("#drop")
    assert fits(page)
    shot(page, f"phone-empty-{scheme}")
    give(
        page,
        ("a-very-long-name-of-a-file-that-does-not-fit-into-one-line-of-a-phone.png", POLYP),
        ("none.png", b"x"),
    )
    page.select_option("#compare", index=2)
    answered(page, 2)
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
