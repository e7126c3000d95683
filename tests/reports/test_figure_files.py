"""The command: files that are whole and the same each time, and a reason for each figure that is not drawn."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image
from present import present
from records import keep_features, settings_of, write_run

from endocil.cli.reports import FigureFormat, figures
from endocil.errors import EndocilError
from endocil.reports.figures import class_images, fixed_features
from endocil.reports.figures import kinds as drawing
from endocil.reports.figures.kinds import KINDS, NAMES
from endocil.reports.figures.material import Material
from endocil.reports.figures.style import COLOURS, line_style
from endocil.runs.records import RunRecord, read_run

DOCS = Path(__file__).parents[2] / "docs" / "compare.md"
WITHOUT_UMAP = [name for name in NAMES if name not in ("umap", "density")]


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Enough for every figure but the gallery."""
    first = keep_features(write_run(tmp_path / "runs" / "ce", settings_of()))
    return [first, write_run(tmp_path / "runs" / "prcbl", settings_of(method__loss="prior_regularized"))]


def told_of(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Name of a figure -> its first line in the table."""
    lines = capsys.readouterr().out.splitlines()
    return {line.split()[0]: line for line in lines if not line.startswith(" ")}


def is_whole(path: Path) -> bool:
    if path.suffix == ".png":
        with Image.open(path) as picture:
            picture.load()
            return len(np.unique(np.asarray(picture.convert("L")))) > 10  # not an empty sheet
    content = path.read_bytes()
    return content.startswith(b"%PDF-") and content.rstrip().endswith(b"%%EOF")


def test_every_figure_is_written_as_png_and_pdf_or_says_what_it_needs(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures(runs, tmp_path / "out", only=WITHOUT_UMAP, dpi=60, gallery=False)
    told = told_of(capsys)
    assert list(told) == ["figure", *WITHOUT_UMAP]
    assert "Fig. 4" in told["accuracy"]
    assert "accuracy.png/.pdf" in told["accuracy"]
    assert "not drawn: left out by --no-gallery" in told["gallery"]
    files = sorted((tmp_path / "out").iterdir())
    assert {path.name for path in files} >= {
        "class-counts-published.png",
        "class-counts-runs.pdf",
        "loss-map-mean-calibrated.png",
        "gradient-norm-mean.pdf",
        "confusion-endocil-loss-cross-entropy.png",
        "mmd.pdf",
        "calibration.png",
    }
    assert [path for path in files if not is_whole(path)] == []


def test_the_same_runs_give_the_same_bytes(runs: list[Path], tmp_path: Path) -> None:
    for folder in ("one", "other"):
        figures(runs, tmp_path / folder, only=["accuracy", "mmd"], dpi=60)
    one, other = ({path.name: path.read_bytes() for path in (tmp_path / each).iterdir()} for each in ("one", "other"))
    assert len(one) == 4
    assert one == other


def test_without_what_a_figure_needs_the_way_out_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = ["accuracy", "umap", "density", "mmd", "loss-map", "gradient-norm", "gamma", "gallery"]
    alone = write_run(tmp_path / "run", settings_of(method__gradients="plain"), sizes=(4,))
    with pytest.raises(EndocilError, match="no figure could be drawn"):
        figures([alone], tmp_path / "out", only=only)
    told = told_of(capsys)
    assert all("--set run.keep=true" in told[name] for name in ("umap", "density", "mmd"))
    assert "more than one task" in told["accuracy"]
    assert "keeps exemplars" in told["gallery"]
    assert not (tmp_path / "out").exists()


def test_without_runs_the_published_counts_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures(None, tmp_path / "out", form=[FigureFormat.png], dpi=60)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["class-counts-published.png"]
    assert "needs runs" in capsys.readouterr().out


def test_an_unknown_figure_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(EndocilError, match="no figure piechart; known: class-counts, accuracy"):
        figures(None, tmp_path / "out", only=["piechart"])


def test_the_list_names_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    figures(show_list=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["figure", *NAMES]


def test_the_page_of_the_docs_names_every_figure_with_its_number() -> None:
    rows = [line.split("|") for line in DOCS.read_text("utf-8").splitlines() if line.startswith("| `")]
    shown = {
        row[1].strip(" `"): row[3].strip() for row in rows if len(row) == 6
    }  # a table of metrics has fewer columns
    assert shown == {kind.name: kind.paper.removeprefix("Fig. ") for kind in KINDS}


def test_a_name_that_a_file_cannot_have_becomes_one_that_it_can() -> None:
    assert (
        drawing.file_stem("confusion", "endocil (loss=cross_entropy, n=3)")
        == "confusion-endocil-loss-cross-entropy-n-3"
    )
    assert drawing.file_stem("mmd", "") == "mmd"
    assert drawing.file_stem("mmd", "", {"mmd", "mmd-2"}) == "mmd-3"


def test_fourteen_lines_differ_without_their_colours() -> None:
    looks = [line_style(i) for i in range(14)]
    assert len({look["marker"] for look in looks}) == 14
    assert len({(look["color"], str(look["linestyle"])) for look in looks}) == 14


def test_no_colour_is_too_light_for_a_line_on_white() -> None:
    for red, green, blue in map(to_rgb, COLOURS):
        assert 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.75


def test_exemplars_are_shown_in_the_order_of_choice_and_images_that_are_gone_are_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "memory").mkdir()
    (folder / "memory" / "task-2.csv").write_text("image,class,order,task,group,source\na.jpg,cecum,0,0,,\n")
    pictures = {"cecum": [np.full((4, 4, 3), shade, np.uint8) for shade in (10, 200)]}
    ((suffix, figure),) = class_images.draw_gallery(Material([read_run(folder)], lambda run: pictures))
    assert suffix == "mean"
    shown = [present(axis.get_images()[0].get_array()) for axis in figure.axes]
    assert [int(picture[0, 0, 0]) for picture in shown] == [10, 200]

    def gone(run: RunRecord) -> dict[str, list[np.ndarray]]:
        raise EndocilError("the images are elsewhere")

    (drawn,) = drawing.draw_all(Material([read_run(folder)], gone), tmp_path, ["gallery"], ["png"], 50)
    assert (drawn.files, drawn.reason) == ((), "the images are elsewhere")


@pytest.mark.slow
def test_embeddings_show_every_image_and_the_chosen_ones_and_repeat(runs: list[Path]) -> None:
    """The only test that calls UMAP, which compiles for long."""
    told: list[str] = []
    given = Material([read_run(runs[0])], tell=told.append)
    first, again = (next(figure for _, figure in fixed_features.draw_plane(given)) for _ in range(2))
    assert "compiles" in told[0]
    by_mean, by_mmd = first.axes
    assert [len(np.asarray(points.get_offsets())) for points in by_mmd.collections] == [30, 3, 24, 3]
    assert (by_mean.get_title(), by_mmd.get_title()) == ("exemplars by mean", "exemplars by MMD")
    for one, other in zip(by_mmd.collections, again.axes[1].collections, strict=True):
        assert np.array_equal(one.get_offsets(), other.get_offsets())
    every, chosen = (np.asarray(points.get_offsets()) for points in by_mmd.collections[:2])
    assert all(any(np.array_equal(place, other) for other in every) for place in chosen)
    ((_, figure),) = fixed_features.draw_densities(given)
    assert [axis.get_title() for axis in figure.axes] == ["cecum: 3 of 30", "polyps: 3 of 24"]
    assert all(len(axis.get_lines()) == 3 for axis in figure.axes)


def test_a_density_has_the_area_one_and_that_of_a_single_place_is_none() -> None:
    places = np.array([0.0, 0.3, 1.0, 1.1])
    grid = np.linspace(-5, 6, 2000)
    assert np.trapezoid(fixed_features.density(places)(grid), grid) == pytest.approx(1.0, abs=1e-3)
    assert fixed_features.density(np.array([2.0, 2.0]))(grid).max() == 0.0


def test_a_missing_matplotlib_is_one_line_that_names_the_extra(tmp_path: Path) -> None:
    code = (
        "import sys, importlib.util as util; found = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'matplotlib' else found(name, *more)\n"
        "sys.argv = ['endocil', 'figures', '--list']\n"
        "from endocil.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "endocil: figures need matplotlib; install it by: pip install 'endocil[report]'\n"


def test_without_umap_the_other_figures_are_drawn(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    figures(runs, tmp_path / "out", only=["umap", "growth"], form=[FigureFormat.png], dpi=60)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["growth.png"]
    assert "not drawn: needs umap-learn: pip install 'endocil[report]'" in capsys.readouterr().out
