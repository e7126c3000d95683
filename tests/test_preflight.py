"""What cannot work is said before the first epoch."""

from pathlib import Path

import pytest
from PIL import Image

from endocil import EndocilError
from endocil.assembly import assemble
from endocil.files import read_csv, write_csv
from endocil.preflight import preflight
from endocil.run_folder import RunFolder
from endocil.settings import Settings, load_settings


@pytest.fixture
def listing(tmp_path: Path) -> Path:
    """Two classes of ten pictures; of each the last two test."""
    rows = []
    for label in ("polyp", "ulcer"):
        (tmp_path / label).mkdir()
        for i in range(10):
            Image.new("RGB", (24, 24), (10 * i, 200, 20)).save(tmp_path / label / f"{i}.png")
            rows.append((f"{label}/{i}.png", label, f"{label}{i // 5}", "test" if i > 7 else "train"))
    write_csv(tmp_path / "list.csv", ("path", "label", "patient", "split"), rows)
    return tmp_path / "list.csv"


def settings(listing: Path, **scenario: object) -> Settings:
    return load_settings(
        {
            "data": {"name": "csv", "file": str(listing), "size": 16},
            "scenario": {"tasks": 1, **scenario},
            "network": {"width": 8},
            "method": {"name": "icarl"},
            "train": {"epochs": 1, "milestones": []},
        }
    )


def change(listing: Path, label: str, part: str) -> None:
    rows = read_csv(listing)
    header = tuple(rows[0])
    kept = [tuple((row | {"split": part} if row["label"] == label else row).values()) for row in rows]
    write_csv(listing, header, kept)


def problems(listing: Path, **scenario: object) -> str:
    return " ".join(preflight(assemble(settings(listing, **scenario))).problems)


def test_a_split_that_works_has_no_problem(listing: Path) -> None:
    assert problems(listing, split_by="given") == ""
    told = preflight(assemble(settings(listing, split_by="given", validation=0.2))).facts[0]
    assert "10 to train, 6 to validate, 4 to test" in told


def test_a_class_without_training_images_is_a_problem(listing: Path) -> None:
    change(listing, "ulcer", "test")
    assert "no training image of ulcer" in problems(listing, split_by="given")


def test_a_first_task_without_test_images_is_a_problem(listing: Path) -> None:
    change(listing, "polyp", "train")
    change(listing, "ulcer", "train")
    assert "no test image of the first task's classes" in problems(listing, split_by="given")
    assert "no test image of the first task's classes" in problems(listing, folds=40, fold=39)


def test_what_was_left_out_is_recorded_with_its_reason(listing: Path, tmp_path: Path) -> None:
    (tmp_path / "polyp" / "3.png").write_bytes(b"")
    chosen = settings(listing, split_by="given")
    with pytest.raises(EndocilError, match="1 of 20 images cannot be read"):
        assemble(chosen)
    data = chosen.data.model_copy(update={"skip_unreadable": True})
    parts = assemble(chosen.model_copy(update={"data": data}))
    here = RunFolder(tmp_path / "run")
    here.create(parts)
    recorded = (here.path / "data.json").read_text("utf-8")
    assert "polyp/3.png" in recorded
    assert "left out" in recorded
