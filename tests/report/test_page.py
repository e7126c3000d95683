"""The page: whole HTML, nothing from outside, names as text, the numbers of the runs."""

import base64
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from endocil.errors import EndocilError
from endocil.report import read_run, write_page

MakeRun = Callable[..., Path]
MakeMetrics = Callable[..., dict[str, Any]]
VOID = {"meta", "img", "br", "link", "input", "hr"}
METHODS = ("finetune", "icarl", "endocil", "joint")
STRANGE = ["<b>bold</b>", 'quote"d', "amp&ersand", "comma,name", "$dollar ${x}", "ünï"]


class Reader(HTMLParser):
    """Checks that tags are closed in order, and gathers what the tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute stands twice in {tag}"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["style"], ["script"]):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).replace("\N{NO-BREAK SPACE}", " ").split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def _page(tmp_path: Path, folders: list[Path], **more: Any) -> str:
    file = tmp_path / "page.html"
    write_page([read_run(folder) for folder in folders], file, title="A <page>", **more)
    return file.read_text("utf-8")


@pytest.fixture
def four(tmp_path: Path, make_run: MakeRun) -> str:
    return _page(tmp_path, [make_run(method) for method in METHODS])


def test_the_page_is_whole_html_with_language_and_title(four: str) -> None:
    page = Reader(four)
    assert four.startswith("<!DOCTYPE html>")
    assert page.all("html") == [{"lang": "en"}]
    assert "A <page>" in page.words
    assert len(page.all("main")) == len(page.all("h1")) == 1


def test_every_id_is_unique_and_every_link_on_the_page_leads_somewhere(four: str) -> None:
    page = Reader(four)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    referred = [attributes["href"] for attributes in page.all("a")]
    assert {f"#method-{i}" for i in range(4)} <= set(referred)
    assert {str(target).removeprefix("#") for target in referred} <= set(ids)
    assert {attributes["aria-labelledby"] for attributes in page.all("section")} <= set(ids)


def test_the_page_asks_nothing_from_outside(four: str) -> None:
    page = Reader(four)
    for tag, attributes in page.tags:
        assert tag not in {"link", "iframe", "object", "embed", "base"}
        for name in ("src", "srcset", "data", "poster", "action", "xlink:href"):
            assert (attributes.get(name) or "data:").startswith("data:")
    assert "http://" not in four
    assert "https://" not in four
    assert "url(" not in four
    assert "@import" not in four
    (policy,) = [meta["content"] for meta in page.all("meta") if "http-equiv" in meta]
    assert str(policy).startswith("default-src 'none'")


def test_headings_go_down_one_step_at_a_time(four: str) -> None:
    levels = [int(tag[1]) for tag, _ in Reader(four).tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_tables_have_captions_and_headings_have_a_scope(four: str) -> None:
    page = Reader(four)
    assert len(page.all("table")) == len(page.all("caption"))
    assert {attributes.get("scope") for attributes in page.all("th")} == {"col", "row"}


def test_pictures_are_told_in_words_and_wide_parts_can_be_scrolled_by_keyboard(four: str) -> None:
    page = Reader(four)
    for attributes in page.all("svg"):
        assert attributes.get("aria-hidden") == "true" or (
            attributes["role"] == "img" and attributes["aria-label"]
        )
    regions = [attributes for attributes in page.all("div") if attributes.get("class") == "scroll"]
    assert len(regions) == len(page.all("table"))
    assert all(region["tabindex"] == "0" and region["aria-label"] for region in regions)


def test_the_page_shows_the_numbers_of_every_run(tmp_path: Path, make_run: MakeRun) -> None:
    folders = [make_run(method) for method in METHODS]
    text = Reader(_page(tmp_path, folders)).text
    for folder in folders:
        metrics = read_run(folder).metrics
        assert f"{metrics['softmax']['acc_last']:.2f}" in text
        assert f"{metrics['softmax']['per_class']['polyps']['recall']:.1f}" in text
        if metrics["nearest_mean"]:
            assert f"{metrics['nearest_mean']['acc_last']:.2f}" in text
    for part in (
        "0.0123",
        "1.467",
        "Four methods",
        "One seed:",
        "not for clinical use",
        "train.epochs",
        "torch",
    ):
        assert part in text


def test_the_best_of_the_incremental_methods_is_marked_and_the_upper_bound_stands_apart(four: str) -> None:
    results = four[four.index('id="results"') : four.index('id="accuracy"')]
    (apart,) = re.findall(r'<tr class="apart">(.*?)</tr>', results)
    assert "joint" in apart
    assert "<strong>" not in apart
    (endocil,) = re.findall(r'<th scope="row">endocil</th>(.*?)</tr>', results)
    assert endocil.count("<strong>") == 5


def test_each_metric_of_the_table_is_defined(four: str) -> None:
    assert len(Reader(four).all("dt")) == 5
    assert "Average forgetting: accuracy on a task just after it was learnt" in Reader(four).text


def test_strange_class_names_stay_names(tmp_path: Path, make_run: MakeRun, make_metrics: MakeMetrics) -> None:
    folder = make_run("endocil", metrics=make_metrics("endocil", classes=STRANGE, sizes=(4, 2)))
    page = Reader(_page(tmp_path, [folder]))
    assert page.all("b") == []
    for name in STRANGE:
        assert page.words.count(name) >= 4  # rows and columns of the confusion matrix, classes, exemplars


def test_absolute_paths_do_not_reach_the_page(four: str) -> None:
    assert "somebody" not in four
    assert "test-kvasir" in four


def test_several_seeds_are_shown_with_their_spread(tmp_path: Path, make_run: MakeRun) -> None:
    page = _page(tmp_path, [make_run(method, seed) for method in ("icarl", "endocil") for seed in (0, 1, 2)])
    text = Reader(page).text
    assert "seeds 0, 1 and 2" in text
    assert "±" in text
    assert 'class="whisker"' in page
    assert "One seed" not in text
    assert page.count('class="method"') == 2


def test_one_run_alone_has_a_page_without_a_contest(tmp_path: Path, make_run: MakeRun) -> None:
    for method in METHODS:
        page = _page(tmp_path, [make_run(method)])
        Reader(page)
        assert "<strong>" not in page
        assert 'id="recall"' not in page


def test_sources_are_left_out_where_none_is_known(
    tmp_path: Path, make_run: MakeRun, make_metrics: MakeMetrics
) -> None:
    metrics = make_metrics("icarl")
    metrics["softmax"]["per_source"] = {}
    assert "<h4>Sources</h4>" not in _page(tmp_path, [make_run("icarl", metrics=metrics)])


def test_a_gallery_is_embedded_as_small_png_pictures(tmp_path: Path, make_run: MakeRun) -> None:
    pixels = np.arange(96 * 96 * 3, dtype=np.uint8).reshape(96, 96, 3)
    page = Reader(_page(tmp_path, [make_run("endocil")], gallery={'"polyps"': [("a<b>.jpg", pixels)]}))
    (picture,) = page.all("img")
    kind, _, data = str(picture["src"]).partition(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(data).startswith(b"\x89PNG")
    assert picture["alt"] == '"polyps": a<b>.jpg'


def test_long_training_is_thinned_but_ends_where_it_ended(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run("finetune")
    lines = (folder / "events.jsonl").read_text().splitlines()
    epochs = [line for line in lines if '"epoch"' in line]
    many = epochs * 40
    many[-1] = many[-1].replace('"classification": ', '"classification": 9')
    (folder / "events.jsonl").write_text("\n".join(many) + "\n")
    page = _page(tmp_path, [folder])
    (told,) = re.findall(r"classification ends at (\S+?)\"", page)
    assert told.startswith("90.")
    assert len(page) < 200_000


def test_the_page_of_four_runs_is_small(four: str) -> None:
    assert len(four.encode()) < 1_000_000


def test_runs_on_different_images_cannot_stand_on_one_page(
    tmp_path: Path, make_run: MakeRun, make_metrics: MakeMetrics
) -> None:
    other = make_run("icarl", metrics=make_metrics("icarl", classes=STRANGE, sizes=(4, 2)))
    with pytest.raises(EndocilError, match="different classes or images"):
        _page(tmp_path, [make_run("endocil"), other])
    assert not (tmp_path / "page.html").exists()


def test_a_page_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(EndocilError, match="at least one run folder"):
        _page(tmp_path, [])


def test_the_page_tells_how_much_of_the_test_part_is_known(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run("endocil")
    assert 'id="leaks"' not in _page(tmp_path, [folder])  # not measured, not claimed
    leaks = {"test_images": 40, "near_in_train": 0.192, "group_in_train": None}
    (folder / "leaks.json").write_text(json.dumps(leaks), "utf-8")
    text = _page(tmp_path, [folder])
    assert 'href="#leaks"' in text
    assert "an exact or near duplicate" in text
    assert "19.2 %" in text
    assert "an image of the group" not in text
