"""README and docs say what is true: their Python runs, their files are there, their tables come from the ledger."""

import re
from pathlib import Path
from typing import Any

import pytest

from endocil.cli.ledger import tables
from endocil.methods import METHODS, method_options
from endocil.reports.ledger import insert_tables

HOME = Path(__file__).parents[1]
PAGES = sorted([*HOME.glob("*.md"), *HOME.glob("docs/**/*.md")])
README = (HOME / "README.md").read_text("utf-8")


EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
(SMOKE,) = (code for code in EXAMPLES if 'run("smoke"' in code)


@pytest.mark.parametrize("code", [code for code in EXAMPLES if code != SMOKE])
def test_every_python_example_of_the_readme_runs(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "endocil" in code
    exec(compile(code, "README.md", "exec"), {})


def test_the_smoke_run_of_the_readme_ends_well_above_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one thread, two, and three instruction sets, seeds 0 to 4 end far above this (docs/evidence.md)."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(SMOKE, "README.md", "exec"), names)
    metrics = names["result"].metrics
    sizes = [sum(row) for row in metrics["softmax"]["confusion"]]
    chance, largest = 100 / len(sizes), 100 * max(sizes) / sum(sizes)
    assert largest < 1.5 * chance
    assert min(metrics[head]["acc_last"] for head in ("softmax", "nearest_mean")) > 1.7 * chance


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME)))
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8")):
        if not target.startswith(("https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME)))
def test_the_examples_of_a_page_import_what_there_is(page: Path) -> None:
    """And every test file that a page names is there."""
    text = page.read_text("utf-8")
    for line in re.findall(r"^(?:from endocil|import endocil).*$", text, re.MULTILINE):
        exec(line, {})
    for named in re.findall(r"`(tests/[\w/]+\.py)", text):
        assert (HOME / named).exists(), f"{page.name} names {named}"


def test_the_tables_of_the_results_are_those_of_the_ledger() -> None:
    known = tables(HOME / "docs" / "results")
    pages = [page for page in HOME.glob("docs/*.md") if "<!-- ledger:" in page.read_text("utf-8")]
    assert HOME / "docs" / "results.md" in pages
    stale = [page.name for page in pages if insert_tables(page, known, check=True)]
    assert stale == [], "run: endocil ledger insert docs/results.md"


def test_the_settings_shown_for_own_images_are_valid(tmp_path: Path) -> None:
    from endocil import load_settings

    (shown,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "mine.toml").write_text(shown, "utf-8")
    assert load_settings(tmp_path / "mine.toml").scenario.tasks == 4


def test_no_file_speaks_of_a_machine_or_a_registry() -> None:
    words = re.compile(r"(?<![\w.])/(work|root)/|pypi\.org|pythonhosted|debian\.org|npmjs")
    suffixes = {".py", ".md", ".toml", ".txt", ".cff", ".json", ".csv", ".svg", ".html", ".css", ".js", ".sh"}
    for path in HOME.rglob("*"):
        hidden = any(part.startswith(".") or part == "runs" for part in path.relative_to(HOME).parts)
        if path.is_file() and path.suffix in suffixes and not hidden and path != Path(__file__):
            assert not words.search(path.read_text("utf-8")), path


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_has_a_page_with_its_options_and_tests_that_exist(name: str) -> None:
    page = (HOME / "docs" / "methods" / f"{name}.md").read_text("utf-8")
    assert f"[{name}](docs/methods/{name}.md)" in README
    assert [key for key in method_options(name) if f"method.{key}" not in page] == []
    tests = "".join(path.read_text("utf-8") for path in (HOME / "tests").rglob("test_*.py"))
    assert [test for test in re.findall(r"`(test_\w+)`", page) if f"def {test}(" not in tests] == []


def test_the_presets_of_the_data_page_have_the_tasks_and_test_sizes_told_there() -> None:
    from endocil.data.scenario import keep_classes
    from endocil.data.splits import TEST
    from endocil.datasets.public.catalogue import as_published, find
    from endocil.runs.build import scenario_of
    from endocil.settings.settings import load_settings

    page = (HOME / "docs" / "data.md").read_text("utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (\d+) \| ([\d, ]+) \| ([\d,]+) \|$", page, re.MULTILINE)
    assert len(rows) == 6
    for preset, classes, tasks, tests in rows:
        settings = load_settings(preset)
        chosen = settings.scenario
        published = as_published(find(settings.data.name))
        kept = keep_classes(published, minimum=chosen.minimum, leave_out=chosen.leave_out, order=chosen.order)
        made = scenario_of(kept, settings)
        assert (len(kept.classes), made.counts(TEST).sum()) == (int(classes), int(tests.replace(",", "")))
        assert ", ".join(str(task.n_new) for task in made.tasks) == tasks
