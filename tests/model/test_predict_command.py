"""endocil bundle and endocil predict, as one types them."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from endocil.cli.main import main


def endocil(*arguments: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["endocil", *map(str, arguments)])
        try:
            main()
        except SystemExit as ended:
            if ended.code:
                raise


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    top = tmp_path / "images"
    for name in ("b/1.png", "a/1.png", "a/2.png"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(top / name)
    (top / "a" / "3.png").write_bytes(b"broken")
    return top


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_becomes_a_file_that_predicts(
    tiny_run: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out, cam = tmp_path / "model.endocil", tmp_path / "out.csv", tmp_path / "cam"
    options = ("--held-out", 3, "--ood-rate", 0.1, "--licence", "mine", "--name", "my model")
    endocil("bundle", tiny_run, "-o", model, *options)
    told = capsys.readouterr().out
    assert "5 classes, 20 exemplars" in told
    assert "cross-fitted" in told
    assert "sha256 " in told
    endocil("predict", model, folder, "-o", out, "--top", 2, "--reasons", 1, "--gradcam", cam)
    told = capsys.readouterr().out
    assert "3 images" in told
    assert "cannot be read and marked there: 1, first" in told
    rows = rows_of(out)
    assert [row["image"] for row in rows] == ["a/1.png", "a/2.png", "a/3.png", "b/1.png"]
    for row in (*rows[:2], rows[3]):
        assert float(row["probability_1"]) >= float(row["probability_2"]) > 0
        assert row["out_of_distribution"] in ("yes", "no")
        assert row["calibrated"] == ("no" if "it stays 1" in told else "yes")
        assert row["mean_class"]
        assert row["exemplar_1_class"]
        assert float(row["exemplar_1_distance"]) >= 0
        assert (cam / row["gradcam"]).is_file()
        assert row["error"] == ""
    assert "exemplar_2" not in rows[0]
    assert "class_3" not in rows[0]
    assert rows[2]["error"] == "not a BMP, JPEG, PNG, TIFF or WebP image, or damaged"
    assert rows[2]["class_1"] == ""
    assert len({path.name for path in cam.iterdir()}) == 3


def test_too_few_held_out_images_for_the_rate_are_told_and_flag_nothing(
    tiny_run: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = tmp_path / "model.endocil", tmp_path / "out.csv"
    told = "are too few for a threshold that flags 5 %; at least 19 are needed"
    endocil("bundle", tiny_run, "-o", model, "--held-out", 1)
    assert f"note: 5 held-out images {told}" in capsys.readouterr().out
    endocil("predict", model, folder, "-o", out)
    shown = capsys.readouterr().out
    assert told in shown
    assert "unlike anything learned\n" not in shown
    calibrated = "no" if "it stays 1" in shown else "yes"
    readable = [row for row in rows_of(out) if not row["error"]]
    assert {(row["calibrated"], row["out_of_distribution"]) for row in readable} == {(calibrated, "")}


def test_odd_names_on_the_disk_are_predicted_and_shown_printable(
    tiny_model: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd, out = "b/\x1b[2Jred\nsha256 0.png", tmp_path / "out.csv"
    (folder / "a" / "1.png").rename(folder / odd)
    (folder / "a" / "3.png").rename(folder / "a\x1b\n3.png")
    endocil("predict", tiny_model, folder, "-o", out)
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "first a\\x1b\\n3.png: not a BMP" in told
    assert {row["image"] for row in rows_of(out)} == {odd, "a/2.png", "b/1.png", "a\x1b\n3.png"}


def test_terms_and_names_that_no_model_takes_are_refused(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model.endocil"
    for option, told in (
        (("--consent", "a\nb"), "--consent has the character U+000A"),
        (("--licence", "a\x1b[31m"), "--licence has the character U+001B"),
        (("--licence", "x" * 5000), "--licence has 5,000 characters"),
        (("--name", "a\u2028b"), "manifest.json.name has the character U+2028"),
        (("--name", "x" * 2000), "--name has 2,000 characters"),
    ):
        assert told in refused(capsys, "bundle", tiny_run, "-o", out, *option)
    assert not out.exists()


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as ended:
        endocil(*arguments)
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    return told


def test_what_is_read_is_never_written_over(
    tiny_model: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "list.csv").write_text("path\na/1.png\n")
    before = {path: path.read_bytes() for path in [tiny_model, *folder.rglob("*.*")]}
    for images, out in (
        (folder, tiny_model),
        (folder / "list.csv", folder / "list.csv"),
        (folder / "list.csv", folder / "a" / "1.png"),
        (folder, folder / "b" / ".." / "a" / "2.png"),
        (folder, folder),
    ):
        assert "choose another" in refused(capsys, "predict", tiny_model, images, "-o", out) or out == folder
    assert {path: path.read_bytes() for path in before} == before
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").touch()
    assert "not empty" in refused(capsys, "predict", tiny_model, folder, "-o", tmp_path / "x.csv", "--gradcam", full)


def test_a_model_is_never_written_over(tiny_run: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tiny_model.read_bytes()
    assert "exists already" in refused(capsys, "bundle", tiny_run, "-o", tiny_model)
    assert tiny_model.read_bytes() == before


def test_errors_are_one_line(
    tiny_model: Path, tiny_run: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.csv"
    cut = tmp_path / "cut.endocil"
    cut.write_bytes(tiny_model.read_bytes()[:5000])
    assert "was cut" in refused(capsys, "predict", cut, folder, "-o", out)
    assert "there is no model" in refused(capsys, "predict", tmp_path / "none", folder, "-o", out)
    assert "no image can be read, of 1" in refused(capsys, "predict", tiny_model, folder / "a" / "3.png", "-o", out)
    assert "--ood-rate is 2" in refused(capsys, "bundle", tiny_run, "-o", cut, "--ood-rate", 2)
    assert "is not a run" in refused(capsys, "bundle", folder, "-o", tmp_path / "new.endocil")
    assert not out.exists()


def test_predictions_and_exports_write_over_a_file_only_by_force(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(tmp_path / "a.png")
    for command, name in (("predict", "x.csv"), ("export", "x.onnx")):
        images = [tmp_path / "a.png"] if command == "predict" else []
        (tmp_path / name).write_text("mine")
        assert "--force" in refused(capsys, command, tiny_model, *images, "-o", tmp_path / name)
        assert (tmp_path / name).read_text() == "mine"
        if command == "predict":
            endocil(command, tiny_model, *images, "-o", tmp_path / name, "--force")
            assert (tmp_path / name).read_text() != "mine"
