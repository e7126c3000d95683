"""`endocil review`: what is unlike or uncertain comes onto a page and into a list that `endocil learn` takes."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from commands import endocil
from PIL import Image

from endocil.model.file import read_model_file
from endocil.model.model import Model
from endocil.model.predictions import Predictions
from endocil.review.review import UNCERTAIN, UNLIKE, to_review


def predictions(probabilities: list[list[float]], scores: list[float]) -> Predictions:
    from endocil.model.manifest import Calibration

    fitted = Calibration(
        images=30, temperature=1.0, error_before=0.1, error=0.1, folds=2, ood_threshold=1.0, ood_rate=0.05
    )
    n = len(scores)
    return Predictions(
        images=tuple(f"{i}.png" for i in range(n)),
        labels=np.full(n, -1, np.int64),
        classes=("a", "b"),
        scores=np.log(np.array(probabilities, np.float32)),
        distances=None,
        sources=("",) * n,
        ood_score=np.array(scores, np.float32),
        calibration=fitted,
    )


def test_the_most_unlike_come_first_then_the_least_certain() -> None:
    found = predictions([[0.9, 0.1], [0.6, 0.4], [0.99, 0.01], [0.51, 0.49], [0.2, 0.8]], [2.0, 0.5, 3.0, 0.5, 0.9])
    items = to_review(found, below=0.7)
    assert [(item.row, item.why) for item in items] == [(2, UNLIKE), (0, UNLIKE), (3, UNCERTAIN), (1, UNCERTAIN)]
    assert [item.row for item in to_review(found, below=0.7, most=3)] == [2, 0, 3]
    assert items[0].suggestion == "a"
    assert items[0].second == "b"


@pytest.fixture
def arrived(tmp_path: Path) -> Path:
    """New images, of which the model knows nothing."""
    folder = tmp_path / "arrived"
    folder.mkdir()
    for i, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (6, 48, 40, 3), np.uint8)):
        Image.fromarray(pixels).save(folder / f"{i}, new.png")
    return folder


def test_learn_takes_the_completed_list_as_it_is(tiny_model: Path, arrived: Path, tmp_path: Path) -> None:
    done = endocil("review", arrived, "--model", tiny_model, "-o", tmp_path / "r.html", "--below", "1")
    assert done.returncode == 0, done.stderr
    assert f"endocil learn {tiny_model} {tmp_path / 'r.csv'} -o NEW" in done.stdout
    page = (tmp_path / "r.html").read_text()
    assert page.count('<img src="data:image/jpeg;base64,') == 6
    rows = list(csv.DictReader((tmp_path / "r.csv").open()))
    assert {row["path"] for row in rows} == {f"arrived/{i}, new.png" for i in range(6)}
    assert {row["label"] for row in rows} == {""}
    empty = endocil("learn", tiny_model, tmp_path / "r.csv", "-o", tmp_path / "m2.endocil")
    assert "has a label yet" in empty.stderr
    for row in rows[:4]:
        row["label"] = "noise"
    with (tmp_path / "r.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    quick = ("--set", "train.epochs=1", "--set", "train.milestones=[]", "--validation", "0")
    learned = endocil("learn", tiny_model, tmp_path / "r.csv", "-o", tmp_path / "m2.endocil", *quick)
    assert learned.returncode == 0, learned.stderr
    content = read_model_file(tmp_path / "m2.endocil")
    assert content.manifest.history[-1].added == {"noise": 4}


def test_the_list_of_images_elsewhere_has_whole_paths_and_the_command_for_them(
    tiny_model: Path, arrived: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    done = endocil("review", arrived, "--model", tiny_model, "-o", tmp_path / "out" / "r.html", "--below", "1")
    assert "--set data.absolute_paths=true" in done.stdout
    again = endocil("review", arrived, "--model", tiny_model, "-o", tmp_path / "out" / "r.html")
    assert again.returncode == 1
    assert "exists already" in again.stderr
    rows = list(csv.DictReader((tmp_path / "out" / "r.csv").open()))
    assert all(Path(row["path"]).is_file() for row in rows)


def test_the_page_repeats_the_list_so_that_it_can_be_saved_from_there(
    tiny_model: Path, arrived: Path, tmp_path: Path
) -> None:
    endocil("review", arrived, "--model", tiny_model, "-o", tmp_path / "r.html", "--below", "1", "--most", "2")
    page = (tmp_path / "r.html").read_text()
    assert len(re.findall(r'data-row="\d"', page)) == 2
    for name in Model.load(tiny_model).classes:
        assert f'<option value="{name}">' in page


def test_a_folder_of_images_alone_is_learned_as_the_class_that_is_named(
    tiny_model: Path, arrived: Path, tmp_path: Path
) -> None:
    output = tmp_path / "m2.endocil"
    quick = ("--set", "train.epochs=1", "--set", "train.milestones=[]", "--validation", "0")
    done = endocil("learn", tiny_model, arrived, "-o", output, "--class", "noise", *quick)
    assert done.returncode == 0, done.stderr
    assert read_model_file(output).manifest.history[-1].added == {"noise": 6}
    (tmp_path / "l.csv").write_text("path;label\narrived/0, new.png;noise\n")
    refused = endocil("learn", tiny_model, tmp_path / "l.csv", "-o", tmp_path / "m3.endocil", "--class", "noise")
    assert "is a list, which has labels" in refused.stderr
