"""Pages in a real browser: Debian's chromium, driven by playwright. Without one the tests are skipped, or fail where
ENDOCIL_NEEDS_BROWSER is set."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pytest
from made_runs import CLASSES, TASK_SIZES, _predictions, settings_of, write_run

from endocil.metrics.metrics import summarise
from endocil.model.prediction_files import write_predictions
from endocil.reports.gallery import Exemplar
from endocil.reports.page import write_page
from endocil.runs.records import read_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

METHODS = ("finetune", "icarl", "endocil", "joint")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WAIT = 30_000  # milliseconds


def _without(what: str) -> NoReturn:
    if os.environ.get("ENDOCIL_NEEDS_BROWSER"):
        pytest.fail(f"{what}, and ENDOCIL_NEEDS_BROWSER is set")
    pytest.skip(f"{what}: the page was not tried in a browser")


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    names = (os.environ.get("ENDOCIL_CHROMIUM"), "chromium", "chromium-browser")
    program = next((found for name in names if name and (found := shutil.which(name))), None)
    if program is None:
        _without("chromium is not installed")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _without("playwright is not installed")
    with sync_playwright() as play:
        running = play.chromium.launch(executable_path=program, args=list(FLAGS), headless=True)
        yield running
        running.close()


def _run(folder: Path, method: str, seed: int = 0) -> Path:
    """A run with predictions, so that the page can say what is noise."""
    sizes = (len(CLASSES),) if method == "joint" else TASK_SIZES
    stored = [_predictions(method, seed, CLASSES, sizes, t) for t in range(len(sizes))]
    made = write_run(folder / f"{method}-{seed}", settings_of(method, seed), summarise(stored))
    for t, predictions in enumerate(stored):
        write_predictions(made / "predictions" / f"task-{t}.csv", predictions)
    (made / "leaks.json").write_text('{"test_images": 462, "near_in_train": 0.192}')
    return made


def _exemplars(name: str) -> list[Exemplar]:
    pixels = np.full((64, 64, 3), 120, np.uint8)
    return [Exemplar(f"{name}/picture-{k}.jpg", k, "0", "patient-7", "gastroscope", pixels) for k in range(3)]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {method: _run(folder, method) for method in METHODS}


@pytest.fixture(scope="session")
def many(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of four methods with a gallery of two."""
    file = tmp_path_factory.mktemp("pages") / "many.html"
    gallery = {f"{method}-0": {name: _exemplars(name) for name in CLASSES} for method in METHODS[1:3]}
    write_page([read_run(run) for run in runs.values()], file, title="Four methods", gallery=gallery)
    return file


@pytest.fixture(scope="session")
def longnamed(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of one run whose exemplars have names as public data sets give them, and groups named after others."""
    file, pixels = tmp_path_factory.mktemp("pages") / "long.html", np.full((64, 64, 3), 120, np.uint8)
    names = [f"lower-gi-tract/findings/polyps/{k}a25f452-6381-4644-87ec-42b94bad4d47.jpg" for k in range(6)]
    shown = [Exemplar(names[k], k, "0", names[k + 1], "", pixels) for k in range(5)]
    gallery = {"endocil-0": {"polyps": shown}}
    write_page([read_run(runs["endocil"])], file, title="Long names", gallery=gallery)
    return file


@pytest.fixture(scope="session")
def one(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("pages") / "one.html"
    write_page([read_run(runs["endocil"])], file, title="One run")
    return file


@pytest.fixture
def opened(browser: "Browser") -> Iterator[Callable[..., "Page"]]:
    """opened(file, width=390, color_scheme="dark"): the file in a window of its own. At the end nothing may have been
    asked from outside, and the console must be empty."""
    asked, said, contexts = [], [], []

    def show(file: Path, *, width: int = 1200, **how: Any) -> "Page":
        context = browser.new_context(viewport={"width": width, "height": 900}, **how)
        context.set_default_timeout(WAIT)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(file.as_uri())
        return page

    yield show
    for context in contexts:
        context.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert len({url.partition("#")[0] for url in asked if url.startswith("file:")}) <= 2
    assert said == []
