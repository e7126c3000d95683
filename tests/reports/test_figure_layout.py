"""Every kind of figure, drawn: no text is cut by the edge of the sheet, none runs over another one."""

from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import records
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from records import keep_features, settings_of, write_run

from endocil.reports.figures import fixed_features
from endocil.reports.figures.kinds import KINDS, Kind
from endocil.reports.figures.material import Material
from endocil.reports.figures.style import fit, headline, legend_below, lines_of, new_figure, small_multiples, styled
from endocil.runs.records import RunRecord, read_run

DPI = 90
LONG_NAMES = (
    "Normal mucosa and vascular pattern in the large bowel",
    "Gastroesophageal_junction_normal z-line",
    "lymphangiectasia",
    "ulcerative-colitis-grade-1-to-2",
)
LONG_PLACE = "/images/colonoscopies_of_the_second_hospital_without_the_ones_of_2019"


def pictures(run: RunRecord) -> dict[str, list[np.ndarray]]:
    return {name: [np.full((4, 4, 3), 40 * i, np.uint8) for i in range(3)] for name in run.metrics["classes"]}


def with_exemplars(folder: Path) -> Path:
    (folder / "memory").mkdir()
    name = read_run(folder).metrics["classes"][0]
    (folder / "memory" / "task-2.csv").write_text(f"image,class,order,task,group,source\na.jpg,{name},0,0,,\n")
    return folder


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Material:
    """Two runs that differ in one setting, so that there are few words."""
    folder = tmp_path_factory.mktemp("short")
    first = with_exemplars(keep_features(write_run(folder / "ce", settings_of())))
    other = write_run(folder / "prcbl", settings_of(method__loss="prior_regularized"))
    return Material([read_run(first), read_run(other)], pictures)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Material:
    """Long names of classes, data and experiments; the first task has one class, so its figures have one panel."""
    folder = tmp_path_factory.mktemp("long")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "CLASSES", LONG_NAMES)
        runs = [
            write_run(
                folder / f"{loss}-{gradients}",
                settings_of(method__loss=loss, method__gradients=gradients, data__root=LONG_PLACE),
                sizes=(1, 2, 1),
            )
            for gradients in ("calibrated", "plain")
            for loss in ("cross_entropy", "prior_regularized")
        ]
    with_exemplars(keep_features(runs[0], counts=(30,)))
    return Material([read_run(run) for run in runs], pictures)


@pytest.fixture
def _no_umap(monkeypatch: pytest.MonkeyPatch) -> None:
    """UMAP compiles for long, and where its points lie moves no text."""
    monkeypatch.setattr(fixed_features, "umap", lambda features, n: features[:, :n].astype(np.float64))


@pytest.fixture
def texts_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Figure], list[tuple[str, Bbox]]]:
    """The texts that a figure draws, with their places in pixels: ticks out of view are never drawn."""
    found: dict[int, tuple[str, Bbox]] = {}
    plain = Text.draw

    def draw(self: Text, renderer: RendererBase, *more: object) -> None:
        if self.get_visible() and self.get_text():
            found[id(self)] = (self.get_text(), self.get_window_extent(renderer).frozen())
        plain(self, renderer, *more)

    def texts(figure: Figure) -> list[tuple[str, Bbox]]:
        found.clear()
        figure.draw_without_rendering()
        return list(found.values())

    monkeypatch.setattr(Text, "draw", draw)
    return texts


def cut(figure: Figure, texts: list[tuple[str, Bbox]]) -> list[str]:
    sheet = figure.bbox
    low, high = np.asarray(sheet.min) - 0.5, np.asarray(sheet.max) + 0.5
    return [text for text, box in texts if (box.min < low).any() or (box.max > high).any()]


def overlapping(texts: list[tuple[str, Bbox]]) -> list[tuple[str, str]]:
    """By more than the white around letters."""
    return [
        (text, other)
        for i, (text, box) in enumerate(texts)
        for other, beside in texts[:i]
        if (np.minimum(box.max, beside.max) - np.maximum(box.min, beside.min) > 1.5).all()
    ]


@pytest.mark.usefixtures("_no_umap")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("words", ["short", "long"])
def test_every_text_is_whole_and_alone(
    kind: Kind, words: str, request: pytest.FixtureRequest, texts_of: Callable[[Figure], list[tuple[str, Bbox]]]
) -> None:
    material = request.getfixturevalue(words)
    with styled():
        figures = [figure for _, figure in kind.draw(material)]
        assert figures
        for figure in figures:
            fit(figure, DPI)
            texts = texts_of(figure)
            assert len(texts) > 4
            assert cut(figure, texts) == []
            assert overlapping(texts) == []


def test_the_check_sees_what_is_cut_and_what_overlaps(texts_of: Callable[[Figure], list[tuple[str, Bbox]]]) -> None:
    with styled():
        figure, axes = small_multiples(2, width=1.8, height=1.5)
        for axis in axes:
            axis.set_title("a title that is too long for its panel")
        headline(figure, "a headline that is too long " * 4)
        texts = texts_of(figure)
        assert len(cut(figure, texts)) == 3
        assert len(overlapping(texts)) == 1
        fit(figure, DPI)
        assert cut(figure, texts_of(figure)) == []


@pytest.mark.parametrize("kind", ["accuracy", "gradient-norm", "gamma", "loss-map", "growth", "weight-norms"])
def test_there_is_no_half_epoch_and_no_half_task(kind: str, short: Material) -> None:
    (draw,) = [one.draw for one in KINDS if one.name == kind]
    counted = 0
    for _, figure in draw(short):
        for scale in [scale for axis in figure.axes for scale in (axis.xaxis, axis.yaxis)]:
            if scale.get_label_text() in ("epoch", "task"):
                counted += 1
                ticks = scale.get_majorticklocs()
                assert np.array_equal(ticks, np.round(ticks))
    assert counted


def test_the_legend_takes_its_height_from_the_sheet_and_not_from_the_axes() -> None:
    heights = []
    for names in (2, 12):
        with styled():
            figure = new_figure(4.0, 2.0)
            axis = figure.add_subplot()
            for i in range(names):
                axis.plot([0, 1], label=f"an experiment with a long name, number {i}")
            legend_below(figure, [axis])
            fit(figure, DPI)
            heights.append(axis.get_window_extent().height)
    assert heights[1] > 0.9 * heights[0]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("short", ["short"]),
        ("endocil (loss=plain)", ["endocil", "(loss=", "plain)"]),
        ("abcdefghijkl", ["abcdefgh", "ijkl"]),
        ("", [""]),
    ],
)
def test_a_line_is_cut_at_spaces_first_then_after_joints_then_anywhere(line: str, told: list[str]) -> None:
    assert list(lines_of(line, lambda part: len(part) <= 8)) == told


def test_a_place_without_room_ends_in_letters_and_not_in_an_endless_loop() -> None:
    assert list(lines_of("abc", lambda part: False)) == ["a", "b", "c"]


def test_the_style_stays_inside() -> None:
    before = dict(matplotlib.rcParams)
    with styled():
        assert matplotlib.rcParams["text.parse_math"] is False
    assert dict(matplotlib.rcParams) == before
