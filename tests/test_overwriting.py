"""No command writes over a file that is there, unless it is told to by --force."""

from pathlib import Path

import pytest
from commands import endocil

from endocil.datasets.synthetic import write_folder


@pytest.mark.parametrize(
    ("typed", "there"),
    [
        ("report RUN -o page.html", "page.html"),
        ("table RUN --format csv -o table.csv", "table.csv"),
        ("data audit IMAGES -o audit.html", "audit.html"),
        ("data audit IMAGES -o audit.html", "audit.json"),
        ("data audit IMAGES -o audit.html --groups groups.csv", "groups.csv"),
        ("data sheet sheet.png --size 16 --per-class 1", "sheet.png"),
        ("compare MODEL MODEL IMAGES -o gate.html", "gate.html"),
        ("compare MODEL MODEL IMAGES -o gate.html --csv flips.csv", "flips.csv"),
        ("ledger plot --ledger . -o plot.svg", "plot.svg"),
        ("predict MODEL IMAGES -o list.csv", "list.csv"),
        ("export MODEL -o model.onnx", "model.onnx"),
    ],
)
def test_a_file_that_is_there_stays(
    typed: str, there: str, tiny_run: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "images", seed=0, size=16, images=30, imbalance=1.0)
    places = {"RUN": tiny_run, "MODEL": tiny_model, "IMAGES": tmp_path / "images"}
    Path(there).write_text("mine")
    done = endocil(*(places.get(word, word) for word in typed.split()))
    assert done.returncode in (1, 2)
    assert f"{there} exists already" in done.stderr
    assert "--force" in done.stderr
    assert Path(there).read_text() == "mine"


def test_a_page_and_a_table_are_written_anew_by_force(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for typed in (("report", tiny_run, "-o", "there"), ("table", tiny_run, "-o", "there")):
        Path("there").write_text("mine")
        assert endocil(*typed, "--force").returncode == 0
        assert Path("there").read_text() != "mine"
