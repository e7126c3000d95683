"""README and docs say what is true: their Python runs, their links lead somewhere, their tables come from the code."""

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from endocil.cli.ledger import plot
from endocil.methods import METHODS, method_options
from endocil.reports.ledger import insert_texts
from endocil.reports.ledger_texts import ledger_texts

HOME = Path(__file__).parents[1]
DOCS = HOME / "docs"
LEDGER = DOCS / "results"
PAGES = sorted([*HOME.glob("*.md"), *HOME.glob("docs/**/*.md")])


def text_of(page: str) -> str:
    return (HOME / page).read_text("utf-8")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text_of(page), re.DOTALL)


def headings(page: Path) -> set[str]:
    """The anchors of a page, as the site and other readers of Markdown make them."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    lines = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", line).strip().lower() for line in lines)
    return {re.sub(r"[\s]+", "-", line) for line in plain}


def module_of(code: str, name: str, folder: Path) -> ModuleType:
    path = folder / f"{name}.py"
    path.write_text(code, "utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_is_short_and_has_no_result_tables() -> None:
    readme = text_of("README.md")
    written = re.sub(r"<!-- ledger:.*?<!-- /ledger -->", "", readme, flags=re.DOTALL)  # the rest grows with the ledger
    assert len(written.splitlines()) <= 125
    assert "±" not in readme


def test_the_python_lines_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("README.md", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 9
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (16, 48, 56, 3), dtype=np.uint8)
    images: list[Any] = [*pixels[:4], *(Image.fromarray(one) for one in pixels[4:6])]
    for number, one in enumerate(pixels[6:8]):
        Image.fromarray(one).save(tmp_path / f"{number}.png")
        images.append(tmp_path / f"{number}.png")
    names: dict[str, Any] = {
        "images": images,
        "labels": ["polyp", "ulcer"] * 4,
        "more_images": list(pixels[8:]),
        "more_labels": ["cecum", "z-line"] * 4,
    }
    quick = 'Model.create({"train": {"epochs": 2}, "network": {"width": 8}}, '  # the lines as they are, in seconds
    exec(compile(code.replace("Model.create(", quick), "README.md", "exec"), names)
    top = names["predictions"].top(3)
    assert len(top) == len(images)
    assert all(len(one) == 3 for one in top)
    assert (tmp_path / "model.endocil").is_file()


def test_the_smoke_run_of_the_docs_ends_well_above_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one thread and two, three instruction sets, and other seeds it ends far above this (docs/evidence.md)."""
    monkeypatch.chdir(tmp_path)
    code, *_ = blocks("docs/run.md", "python")
    names: dict[str, Any] = {}
    exec(compile(code, "docs/run.md", "exec"), names)
    metrics = names["result"].metrics
    sizes = [sum(row) for row in metrics["softmax"]["confusion"]]
    chance, largest = 100 / len(sizes), 100 * max(sizes) / sum(sizes)
    assert largest < 1.5 * chance
    assert min(metrics[head]["acc_last"] for head in ("softmax", "nearest_mean")) > 1.7 * chance


def test_the_components_example_runs() -> None:
    (code,) = (code for code in blocks("docs/add-a-method.md", "python") if "select_by_mmd" in code)
    exec(compile(code, "docs/add-a-method.md", "exec"), {})


def test_the_method_of_the_docs_learns_with_its_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from endocil import load_settings, run

    (code,) = (code for code in blocks("docs/add-a-method.md", "python") if "class Replay" in code)
    module_of(code, "replay", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    changes = ("method.name=replay:Replay", "method.smoothing=0.1", "train.epochs=2", "train.milestones=[0.5]")
    result = run(load_settings("smoke", changes), tmp_path / "run")
    assert result.metrics["nearest_mean"] is not None  # it keeps exemplars


def test_the_loader_and_the_reader_of_the_docs_give_images(tmp_path: Path) -> None:
    examples = blocks("docs/add-a-method.md", "python")
    (loader,) = (code for code in examples if "def load(" in code)
    (reader,) = (code for code in examples if "class ArrayReader" in code)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 20, 24, 3), dtype=np.uint8)
    for number, one in enumerate(pixels):
        Image.fromarray(one).save(tmp_path / f"{number}.png")
    (tmp_path / "list.csv").write_text("path,finding,patient,device\n1.png,ulcer,p,d\n0.png,polyp,q,d\n")
    table = module_of(loader, "tables", tmp_path).load(file=str(tmp_path / "list.csv"), root=str(tmp_path))
    assert table.ids == ("0.png", "1.png")
    assert table.reader.read("1.png", 16).shape == (16, 16, 3)
    np.save(tmp_path / "pixels.npy", pixels)
    arrays = module_of(reader, "arrays", tmp_path).ArrayReader(str(tmp_path / "pixels.npy"))
    assert arrays.read("1", 16).shape == (16, 16, 3)
    assert len(arrays.fingerprint(["0"])) == 64


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for target, _, anchor in re.findall(r"\]\(([^)#\s]*)(#([^)\s]+))?\)", page.read_text("utf-8")):
        if target.startswith(("https://", "mailto:")):
            continue
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in headings(file), f"{page.name} links to #{anchor} of {file.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME)))
def test_the_examples_of_a_page_import_what_there_is(page: Path) -> None:
    """And every test, benchmark and settings file that a page names is there."""
    text = page.read_text("utf-8")
    for line in re.findall(r"^(?:from endocil|import endocil).*$", text, re.MULTILINE):
        exec(line, {})
    for named in re.findall(r"\b(?:tests|benchmarks|experiments|reproduction)/[\w/-]+\.(?:py|toml|csv)\b", text):
        assert (HOME / named).exists(), f"{page.name} names {named}"


def test_every_page_that_the_code_names_is_there() -> None:
    for folder in ("src", "tests", "benchmarks", "experiments", "reproduction"):
        for path in (HOME / folder).rglob("*"):
            if path.suffix in {".py", ".toml"} and path != Path(__file__):
                for named in re.findall(r"\bdocs/[\w/-]+\.(?:md|toml)", path.read_text("utf-8")):
                    assert (HOME / named).exists(), f"{path.relative_to(HOME)} names {named}"


def test_every_page_is_in_the_menu_of_the_site() -> None:
    menu = set(re.findall(r": ([\w/-]+\.md)$", text_of("mkdocs.yml"), re.MULTILINE))
    assert menu == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}


def test_what_pages_say_of_the_results_is_what_the_ledger_says() -> None:
    known = ledger_texts(LEDGER)
    pages = [page for page in PAGES if "<!-- ledger:" in page.read_text("utf-8")]
    assert {HOME / "README.md", DOCS / "results.md"} <= set(pages)
    stale = [page.name for page in pages if insert_texts(page, known, check=True)]
    assert stale == [], "run: make results"
    named = [set(re.findall(r"<!-- ledger:([\w-]+) -->", text_of(page))) for page in ("README.md", "docs/results.md")]
    assert named[0] == {"overview"}
    assert named[1] >= {"summary", "paper", "ranks", "leaks", "alignment"}


def drawn(file: Path) -> str:
    """Without the names of clip paths: they hash the last bits of a layout, which earlier figures may change."""
    return re.sub(r"\bp[0-9a-f]{10}\b", "p", file.read_text("utf-8"))


def test_the_plots_of_the_results_are_those_of_the_ledger(tmp_path: Path) -> None:
    images = DOCS / "images"
    plot(tmp_path / "results.svg", LEDGER)
    assert drawn(tmp_path / "results.svg") == drawn(images / "results.svg"), "run: make results"
    assert "docs/images/results.svg" in text_of("README.md")
    if "images/ranks.svg" in text_of("docs/results.md"):
        plot(tmp_path / "ranks.svg", LEDGER, "ranks")
        assert drawn(tmp_path / "ranks.svg") == drawn(images / "ranks.svg"), "run: make results"


@pytest.mark.parametrize("page", ["settings.md", "commands.md"])
def test_the_reference_pages_are_those_of_the_code(page: str, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_reference", DOCS / "make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    written = (DOCS / page).read_text("utf-8")
    assert written == reference.PAGES[page](), "run: python docs/make_reference.py"


@pytest.mark.parametrize("page", ["README.md", "docs/own-data.md"])
def test_the_settings_shown_for_own_images_are_valid(page: str, tmp_path: Path) -> None:
    from endocil import load_settings

    for number, shown in enumerate(blocks(page, "toml")):
        (tmp_path / f"{number}.toml").write_text(shown, "utf-8")
        assert load_settings(tmp_path / f"{number}.toml").data.name in ("folder", "csv")


def test_no_file_speaks_of_a_machine_or_a_registry() -> None:
    words = re.compile(r"(?<![\w.])/(work|root)/|pypi\.org|pythonhosted|debian\.org|npmjs")
    suffixes = {".py", ".md", ".toml", ".txt", ".cff", ".json", ".csv", ".svg", ".html", ".css", ".js", ".sh", ".yml"}
    for path in HOME.rglob("*"):
        parts = path.relative_to(HOME).parts
        hidden = any(part.startswith(".") or part in ("runs", "site") for part in parts)
        if path.is_file() and path.suffix in suffixes and not hidden and path != Path(__file__):
            assert not words.search(path.read_text("utf-8")), path


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_has_a_page_with_its_options_and_tests_that_exist(name: str) -> None:
    page = text_of(f"docs/methods/{name}.md")
    assert f"(methods/{name}.md)" in text_of("docs/index.md")
    assert [key for key in method_options(name) if f"method.{key}" not in page] == []
    tests = "".join(path.read_text("utf-8") for path in (HOME / "tests").rglob("test_*.py"))
    assert [test for test in re.findall(r"`(test_\w+)`", page) if f"def {test}(" not in tests] == []


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_code_that_a_method_page_names_is_there(name: str) -> None:
    page = text_of(f"docs/methods/{name}.md")
    for file, names in re.findall(r"`(\w+/\w+\.py)`: ((?:`[\w.]+`(?:, (?=`))?)+)", page):
        source = text_of(f"src/endocil/{file}")
        for symbol in re.findall(r"`([\w.]+)`", names):
            for part in symbol.split("."):
                assert re.search(rf"^\s*(def|class) {part}\b", source, re.MULTILINE), f"{file}: {symbol}"


def test_the_presets_of_the_data_page_have_the_tasks_and_test_sizes_told_there() -> None:
    from endocil import load_settings
    from endocil.data.scenario import keep_classes
    from endocil.data.splits import TEST
    from endocil.datasets.public.facts import find, published_table
    from endocil.runs.parts import scenario_of

    page = text_of("docs/own-data.md")
    rows = re.findall(r"^\| `([\w-]+)` \| (\d+) \| ([\d, ]+) \| ([\d,]+) \|$", page, re.MULTILINE)
    assert len(rows) == 6
    for preset, classes, tasks, tests in rows:
        settings = load_settings(preset)
        chosen = settings.scenario
        published = published_table(find(settings.data.name))
        kept = keep_classes(published, minimum=chosen.minimum, leave_out=chosen.leave_out, order=chosen.order)
        made = scenario_of(kept, settings)
        assert (len(kept.classes), made.counts(TEST).sum()) == (int(classes), int(tests.replace(",", "")))
        assert ", ".join(str(task.n_new) for task in made.tasks) == tasks


def test_the_example_of_a_sweep_has_the_keys_of_a_sweep() -> None:
    sweep, search, recipe = (tomllib.loads(code) for code in blocks("docs/run.md", "toml"))
    assert sweep.keys() == {"settings", "set", "vary", "also"}
    assert search.keys() == {"settings", "samples", "metric", "set", "vary", "search"}
    assert recipe.keys() == {"network", "train"}  # of a run
