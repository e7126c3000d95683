"""The page: whole HTML, nothing from outside, names as text, the numbers of the runs."""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from endocil.datasets.synthetic import render
from endocil.errors import EndocilError
from endocil.html.charts import RIGHT, WIDTH
from endocil.io.text_tables import DASH
from endocil.methods import METHODS as METHODS_THERE
from endocil.metrics.metrics import METRICS, summarise
from endocil.model.prediction_files import read_predictions
from endocil.reports.averages import CLASS_RATES, class_rates, confusions
from endocil.reports.gallery import MOST_PICTURES, PER_CLASS, Exemplar, exemplars_per_class
from endocil.reports.page import write_page
from endocil.runs.experiments import groups
from endocil.runs.records import read_run

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


def test_the_policy_allows_the_page_s_own_script_and_style_and_nothing_else(four: str) -> None:
    page = Reader(four)
    (policy,) = [str(meta["content"]) for meta in page.all("meta") if "http-equiv" in meta]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", four, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not any(name == "style" or name.startswith("on") for _, given in page.tags for name in given)


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
        assert attributes.get("aria-hidden") == "true" or (attributes["role"] == "img" and attributes["aria-label"])
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
    for part in ("0.0123", "1.467", "Four methods", "One seed only:", "not for clinical use", "train.epochs", "torch"):
        assert part in text


def test_the_best_of_the_incremental_methods_is_marked_and_the_upper_bound_stands_apart(four: str) -> None:
    results = four[four.index('id="results"') : four.index('id="noise"')]
    (apart,) = re.findall(r'<tr class="apart">(.*?)</tr>', results)
    assert "JointTrain" in apart
    assert "<strong>" not in apart
    endocil = re.findall(r'<th scope="row">EndoCIL</th>(.*?)</tr>', results)[0]
    assert endocil.count("<strong>") == 5


def test_every_metric_is_defined(four: str) -> None:
    defined = four[four.index('id="definitions"') : four.index('id="settings"')]
    (by_name,) = re.findall(r"<details>(.*?)</details>", defined, re.DOTALL)
    assert by_name.count("<dt>") == len(METRICS)
    assert "Average forgetting: accuracy on a task just after it was learnt" in Reader(four).text


def test_strange_class_names_stay_names(tmp_path: Path, make_run: MakeRun, make_metrics: MakeMetrics) -> None:
    folder = make_run("endocil", metrics=make_metrics("endocil", classes=STRANGE, sizes=(4, 2)))
    page = Reader(_page(tmp_path, [folder]))
    assert page.all("b") == []
    for name in STRANGE:
        assert page.words.count(name) >= 4  # rows and columns of the confusion matrix, classes, exemplars


def test_the_glossary_explains_in_plain_words_what_the_tables_show(four: str) -> None:
    glossary = Reader(
        four[four.index('<dl class="terms">') : four.index("</dl>", four.index('<dl class="terms">')) + 5]
    )
    for word in ("Task", "Recall", "Exemplars", "Not significant", "Budget", "Source", "MMD²"):
        assert word in glossary.words


def test_methods_have_the_names_of_their_papers_and_tasks_are_counted_from_one(four: str) -> None:
    page = Reader(four)
    assert "Four methods (Finetune, iCaRL, EndoCIL and JointTrain) learned" in page.text
    assert not {"finetune", "icarl", "endocil", "joint"} & set(page.words)
    assert {f"task {t}" for t in range(1, 6)} <= set(page.words)
    assert "task 0" not in page.text
    assert "task 6" not in page.text


def test_training_charts_end_where_training_ends(four: str) -> None:
    (chart,) = re.findall(r'<svg[^>]*aria-label="Losses per epoch[^>]*>(.*?)</svg>', four, re.DOTALL)[:1]
    lines = re.findall(r'<path class="line" [^>]*d="([^"]*)"', chart)
    assert max(float(x) for line in lines for x in re.findall(r"[ML]([\d.]+)", line)) == WIDTH - RIGHT


def test_runs_of_different_budgets_are_shown_with_them_and_not_ranked_against_each_other(
    tmp_path: Path, make_run: MakeRun
) -> None:
    folders = [
        make_run("finetune"),
        make_run("icarl"),
        make_run("endocil", train__epochs=12, memory__per_class=50),
        make_run("joint"),
    ]
    page = Reader(_page(tmp_path, folders))
    assert "Method Seeds Epochs Exemplars Acc last" in page.text
    assert "The runs differ in their budget (epochs, exemplars)" in page.text
    assert "EndoCIL 1 12 50" in page.text
    assert "With 6 epochs, 30 exemplars per class" in page.text
    assert "EndoCIL is ahead" not in page.text
    assert "points ahead of iCaRL" not in page.text
    asked = Reader(_page(tmp_path, folders, rank_anyway=True))
    assert "EndoCIL 1 12 50" in asked.text
    assert "points ahead of iCaRL" in asked.text
    assert "may be better for that reason alone" in asked.text


def test_methods_that_keep_nothing_by_design_are_ranked_with_those_that_keep_exemplars(four: str) -> None:
    assert "in their budget" not in four
    assert "points ahead of" in four


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


def test_sources_are_left_out_where_none_is_known(tmp_path: Path, make_run: MakeRun, make_metrics: MakeMetrics) -> None:
    metrics = make_metrics("icarl")
    metrics["softmax"]["per_source"] = {}
    assert "<h4>Sources</h4>" not in _page(tmp_path, [make_run("icarl", metrics=metrics)])


def _gallery(folder: Path, name: str = '"polyps"') -> dict[str, Any]:
    pixels = np.arange(96 * 96 * 3, dtype=np.uint8).reshape(96, 96, 3)
    return {folder.name: {name: [Exemplar("a<b>.jpg", 0, "2", "patient-5", "gastroscope", pixels)]}}


def test_a_gallery_is_embedded_as_small_pictures_with_where_they_come_from(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run("endocil")
    page = Reader(_page(tmp_path, [folder], gallery=_gallery(folder)))
    (picture,) = page.all("img")
    kind, _, data = str(picture["src"]).partition(",")
    assert kind == "data:image/jpeg;base64"
    assert base64.b64decode(data).startswith(b"\xff\xd8")
    assert picture["alt"] == '"polyps", choice 1: a<b>.jpg'
    assert "from task 3 Choice Image Group Source 1 a<b>.jpg patient-5 gastroscope" in page.text


def test_names_of_exemplars_are_short_and_a_group_is_told_where_it_says_more(tmp_path: Path, make_run: MakeRun) -> None:
    pixels = np.zeros((64, 64, 3), np.uint8)
    inside, outside = "lower/findings/polyps/1.jpg", "clips/7/2.jpg"
    images = [
        Exemplar(inside, 0, "2", inside, "", pixels),
        Exemplar(outside, 1, "3", "lower/findings/polyps/8.jpg", "", pixels),
    ]
    folder = make_run("endocil")
    page = Reader(_page(tmp_path, [folder], gallery={folder.name: {"polyps": images}}))
    assert f"Exemplars of polyps Choice Image Task Group 1 1.jpg 3 {DASH} 2 clips/7/2.jpg 4 8.jpg" in page.text
    assert [one["alt"] for one in page.all("img")] == [
        f"polyps, choice {i}: {name}" for i, name in enumerate((inside, outside), 1)
    ]
    page = Reader(_page(tmp_path, [folder], gallery={folder.name: {"polyps": images[:1]}}))
    assert "Exemplars of polyps, from task 3 Choice Image 1 1.jpg" in page.text


def test_a_gallery_without_names_tells_no_image_and_no_group(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run("endocil")
    text = _page(tmp_path, [folder], gallery=_gallery(folder), names=False)
    assert "a&lt;b&gt;.jpg" not in text
    assert "patient-5" not in text
    assert "from task 3 Choice Source 1 gastroscope" in Reader(text).text


def test_without_a_gallery_the_page_names_no_image(tmp_path: Path, make_run: MakeRun) -> None:
    text = _page(tmp_path, [make_run("endocil")])
    assert "<img" not in text
    assert ".jpg" not in text


@pytest.fixture
def photographed(tmp_path: Path, make_run: MakeRun) -> Path:
    """A run whose two test classes are images on disk; of each class one image is taken for the other."""
    rows = ["image,label,source,score:a,score:b"]
    for name, sure in (("a", 3.0), ("b", 2.0)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for k in range(4):
            Image.fromarray(np.full((40, 40, 3), 60 * k, np.uint8)).save(tmp_path / "images" / name / f"{k}.png")
            right = (name == "a") == (k > 0)
            rows.append(f"{name}/{k}.png,{name},,{sure if right else 0.0},{0.0 if right else sure}")
    stored = tmp_path / "task-0.csv"
    stored.write_text("\n".join(rows) + "\n")
    folder = make_run(
        "finetune",
        metrics=summarise([read_predictions(stored)]),
        data={"name": "folder", "root": str(tmp_path / "images"), "size": 32},
        scenario={"tasks": 1, "minimum": 1},
    )
    (folder / "predictions").mkdir()
    stored.rename(folder / "predictions" / "task-0.csv")
    return folder


def test_misclassified_images_are_shown_where_the_gallery_allows_it(tmp_path: Path, photographed: Path) -> None:
    page = Reader(_page(tmp_path, [photographed], gallery={photographed.name: {}}))
    assert [image["alt"] for image in page.all("img")] == [
        "a, taken for b, 95\N{NO-BREAK SPACE}%: a/0.png",
        "b, taken for a, 88\N{NO-BREAK SPACE}%: b/0.png",
    ]
    unnamed = _page(tmp_path, [photographed], gallery={photographed.name: {}}, names=False)
    assert unnamed.count("<img") == 2
    assert ".png" not in unnamed
    without: tuple[dict[str, Any] | None, ...] = (None, {})
    for gallery in without:
        assert "<img" not in _page(tmp_path, [photographed], gallery=gallery)


def test_misclassified_images_of_a_run_that_allows_its_gallery_need_no_exemplars(
    tmp_path: Path, photographed: Path
) -> None:
    settings = photographed / "settings.toml"
    settings.write_text(settings.read_text().replace("keep = false", "gallery = true"))
    assert _page(tmp_path, [photographed], gallery={}).count("<img") == 2
    assert "<img" not in _page(tmp_path, [photographed], gallery=None)
    (tmp_path / "images").rename(tmp_path / "elsewhere")
    assert "<img" not in _page(tmp_path, [photographed], gallery={})


def test_a_gallery_of_many_runs_shows_fewer_pictures_of_each() -> None:
    assert exemplars_per_class(1, 14) == PER_CLASS
    assert exemplars_per_class(13, 14) * 13 * 14 <= MOST_PICTURES
    assert exemplars_per_class(100, 100) == 1


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


def test_what_the_slider_shows_last_is_what_the_tables_say(make_run: MakeRun) -> None:
    (group,) = groups([read_run(make_run("icarl", seed)) for seed in (0, 1)])
    assert len(confusions(group)) == len(class_rates(group)) == 5
    for rates, name in zip(class_rates(group)[-1], group.first.metrics["classes"], strict=True):
        recorded = [run.metrics["softmax"]["per_class"][name] for run in group.results]
        assert rates == pytest.approx([np.mean([one[rate] for one in recorded]) for rate in CLASS_RATES])
    for t in range(5):
        told = [
            (one + other) / 2
            for one, other in zip(
                *(run.metrics["softmax"]["per_class_over_tasks"][t].values() for run in group.results), strict=True
            )
        ]
        assert [rates[0] for rates in class_rates(group)[t]] == pytest.approx(told)


def test_seeds_that_learned_in_different_orders_share_the_last_task_alone(
    tmp_path: Path, make_run: MakeRun, make_metrics: MakeMetrics
) -> None:
    classes = make_metrics("icarl")["classes"]
    folders = [make_run("icarl", 0), make_run("icarl", 1, metrics=make_metrics("icarl", 1, classes=classes[::-1]))]
    (group,) = groups([read_run(folder) for folder in folders])
    counts = [np.array(run.metrics["softmax"]["confusion"]) for run in group.results]
    both = counts[0] + counts[1][::-1, ::-1]
    (matrix,) = confusions(group)
    assert matrix == pytest.approx(100 * both / both.sum(axis=1, keepdims=True))


def test_numbers_for_the_script_cannot_end_its_element(
    tmp_path: Path, make_run: MakeRun, make_metrics: MakeMetrics
) -> None:
    names = ["</script><b>x</b>", "<!--", "a", "b"]
    folder = make_run("endocil", metrics=make_metrics("endocil", classes=names, sizes=(2, 2)))
    page = _page(tmp_path, [folder])
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert json.loads(data)[0]["tasks"] == [names[:2], names[2:]]


def test_the_page_of_four_runs_is_small(four: str) -> None:
    assert len(four.encode()) < 1_000_000


def test_a_page_of_thirteen_methods_and_three_seeds_with_a_gallery_is_under_five_megabytes(
    tmp_path: Path, make_run: MakeRun, make_metrics: MakeMetrics
) -> None:
    metrics = make_metrics("icarl")
    folders = [make_run(method, seed, metrics=metrics) for method in sorted(METHODS_THERE)[:13] for seed in range(3)]
    pixels = render(0, "polyp", 0, 256)
    shown = range(exemplars_per_class(13, 14))
    exemplars = [Exemplar(f"{k:070}.jpg", k, "0", "", "", pixels) for k in shown]
    gallery = {folder.name: dict.fromkeys(metrics["classes"], exemplars) for folder in folders[::3]}
    page = _page(tmp_path, folders, gallery=gallery)
    assert page.count("<img") == 13 * 14 * len(shown)
    assert len(page.encode()) < 5_000_000


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
