"""endocil compare as a pipeline meets it: exit statuses, the page, the list of flips, JSON."""

import csv
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from endocil.cli.main import main
from endocil.datasets.synthetic import load
from endocil.errors import EndocilError
from endocil.model.file import ModelFile, read_model_file, write_model_file
from endocil.model.kept_images import forget
from endocil.model.model import Model
from endocil.release.page import gate_page
from endocil.release.versions import evaluate, read_test

LIMITS = """
[every_class]
largest_loss_of_sensitivity = 99
refuse = "if_shown_harmful"
[overall]
largest_loss_of_accuracy = 30
"""
Compare = Callable[..., int]


@pytest.fixture(scope="session")
def sorted_images(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which each image has the class that the model predicts: the old version is always correct."""
    folder = tmp_path_factory.mktemp("compare") / "test"
    table = load(images=60, classes=5, imbalance=1.0, seed=77)
    pictures = [table.reader.read(image_id, 32) for image_id in table.ids]
    model = Model.load(tiny_model)
    labels = model.predict(pictures).predicted().tolist()
    for i, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        place = folder / model.classes[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(place / f"{i:03d}.png")
    return folder


@pytest.fixture(scope="session")
def worse(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A version that says the least likely class."""
    content = read_model_file(tiny_model)
    state = {name: -value if name.startswith("classifier") else value for name, value in content.state.items()}
    path = tmp_path_factory.mktemp("worse") / "worse.endocil"
    write_model_file(path, replace(content, state=state))
    return path


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compare:
    """Runs the command in a folder of its own; the exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["endocil", "compare", "--force", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    return run


def _rules(folder: Path, text: str = LIMITS) -> Path:
    (folder / "gate.toml").write_text(text)
    return folder / "gate.toml"


def test_the_same_model_passes(
    compare: Compare, tiny_model: Path, sorted_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(tiny_model, tiny_model, sorted_images, "--rules", _rules(tmp_path)) == 0
    output = capsys.readouterr().out
    assert "60 of 60 test images compared" in output
    assert "accuracy 100.0 -> 100.0 %" in output
    assert "PASS: " in output
    assert "PASS: " in (tmp_path / "gate.html").read_text()


def test_a_worse_one_is_refused_with_status_1_and_reported_with_0(
    compare: Compare,
    tiny_model: Path,
    worse: Path,
    sorted_images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert compare(tiny_model, worse, sorted_images, "--rules", _rules(tmp_path), "--csv", "flips.csv") == 1
    output = capsys.readouterr().out
    assert "fails: [overall] largest_loss_of_accuracy, all images: 100.0" in output
    assert "REFUSED: " in output
    page = (tmp_path / "gate.html").read_text()
    assert page.count('<img src="data:image/jpeg;base64,') == 60
    rows = list(csv.DictReader((tmp_path / "flips.csv").open()))
    assert len(rows) == 60
    assert {row["kind"] for row in rows} == {"negative"}
    assert all(row["class_name"] == row["old"] != row["new"] for row in rows)
    assert compare(tiny_model, worse, sorted_images) == 0
    assert "No rules were given; nothing is refused." in capsys.readouterr().out
    assert compare(worse, tiny_model, sorted_images, "--rules", _rules(tmp_path)) == 0


def test_json_is_all_that_is_printed(
    compare: Compare,
    tiny_model: Path,
    worse: Path,
    sorted_images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = (tiny_model, worse, sorted_images, "--rules", _rules(tmp_path), "--json", "--no-pictures")
    assert compare(*arguments) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["verdict"] == "refused"
    assert record["overall"]["accuracy"]["change"]["value"] == -100
    assert record["overall"]["negative_flips"]["flips"] == 60
    assert record["test"]["compared"] == 60
    assert record["old"]["digest"] == Model.load(tiny_model).digest
    page = (tmp_path / "gate.html").read_text()
    assert "<img" not in page
    assert compare(*arguments) == 1
    assert json.loads(capsys.readouterr().out) == record  # the same bits each time


def test_whatever_goes_wrong_ends_with_status_2(
    compare: Compare,
    tiny_model: Path,
    sorted_images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    damaged = tmp_path / "damaged.endocil"
    damaged.write_bytes(tiny_model.read_bytes()[:-100])
    wrong = [
        ((damaged, tiny_model, sorted_images), "damaged"),
        ((tiny_model, tmp_path / "none.endocil", sorted_images), "none.endocil"),
        ((tiny_model, tiny_model, tmp_path / "none"), "is not there"),
        ((tiny_model, tiny_model, sorted_images, "--rules", _rules(tmp_path, "nothing = 1")), "unknown key 'nothing'"),
        ((tiny_model, tiny_model, sorted_images, "-o", tiny_model), "is read by this command"),
        ((tiny_model, tiny_model, sorted_images, "-o", "x", "--csv", "x"), "give two names"),
        ((tiny_model, tiny_model, sorted_images, "-o", tmp_path), "is a folder"),
        ((tiny_model, tiny_model, sorted_images, "--set", "data.nothing=1"), "nothing"),
    ]
    for arguments, words in wrong:
        assert compare(*arguments) == 2, words
        error = capsys.readouterr().err.strip()
        assert words in error
        assert len(error.splitlines()) == 1
    for failure, status in ((RuntimeError("a bug"), 2), (KeyboardInterrupt(), 130)):

        def fails(*_: object, failure: BaseException = failure, **__: object) -> None:
            raise failure

        monkeypatch.setattr("endocil.release.versions.evaluate", fails)
        assert compare(tiny_model, tiny_model, sorted_images) == status


def test_what_is_no_test_image_is_left_out_and_listed(
    tiny_model: Path, tiny_content: ModelFile, tmp_path: Path
) -> None:
    known, own = tiny_content.exemplars.provenance[0].class_name, tiny_content.exemplars.pixels[0].numpy()
    new = np.random.default_rng(0).integers(0, 255, own.shape, dtype=np.uint8)
    for place, pixels in ((known, own), (known, new), ("unheard of", new[::-1])):
        (tmp_path / place).mkdir(exist_ok=True)
        Image.fromarray(np.ascontiguousarray(pixels)).save(tmp_path / place / f"{pixels[0, 0, 0]}.png")
    (tmp_path / known / "broken.png").write_bytes(b"no picture")
    found = evaluate(tiny_model, tiny_model, tmp_path)
    assert found.versions.tested.images == (f"{known}/{new[0, 0, 0]}.png",)
    assert found.inside == ((f"{known}/{own[0, 0, 0]}.png", "both"),)
    assert [image for image, _ in found.unreadable] == [f"{known}/broken.png"]
    assert found.versions.left_out == ((f"unheard of/{new[-1, 0, 0]}.png", "unheard of"),)
    assert not found.is_descendant


def test_both_heads_can_be_compared(
    tiny_model: Path, worse: Path, sorted_images: Path, tiny_content: ModelFile, tmp_path: Path
) -> None:
    by_mean = evaluate(tiny_model, worse, sorted_images, head="nearest_mean")
    assert np.array_equal(by_mean.versions.old.predicted, by_mean.versions.new.predicted)  # only the other differs
    without = tmp_path / "without.endocil"
    write_model_file(without, replace(tiny_content, statistics={}))
    with pytest.raises(EndocilError, match="the new version has no nearest-mean head"):
        evaluate(tiny_model, without, sorted_images, head="nearest_mean")


def test_a_list_gives_groups_and_its_test_part(sorted_images: Path, tmp_path: Path) -> None:
    files = sorted(sorted_images.rglob("*.png"))[:6]
    listing = tmp_path / "list.csv"
    lines = [f"{file},{file.parent.name},p{i // 2},{'train' if i < 2 else 'test'}" for i, file in enumerate(files)]
    listing.write_text("\n".join(["path,label,patient,split", *lines]))
    table = read_test(listing, ["data.absolute_paths=true"])
    assert len(table) == 4
    assert table.groups == ("p1", "p1", "p2", "p2")
    listing.write_text("\n".join(["path,label,patient,split", *(line[: -len("test")] + "train" for line in lines[2:])]))
    with pytest.raises(EndocilError, match="no image of the part test"):
        read_test(listing, ["data.absolute_paths=true"])


def test_the_page_asks_nothing_from_outside_and_names_stay_names() -> None:
    evil = '<img src=x onerror="alert(1)">'
    page = gate_page(_record(evil))
    assert evil not in page
    assert "<script" not in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "default-src 'none'" in page
    assert 'style="' not in page  # the page's own policy would refuse it


def _record(name: str) -> dict[str, object]:
    """With this name wherever a name can stand."""
    share = {"value": 50.0, "interval": [40.0, 60.0], "images": 10, "right": 5, "by_chance": 1.0, "flips": 5}
    pair = {"old": share, "new": share, "change": share}
    version = {"file": name, "digest": name, "name": name, "classes": 2, "made": name, "calibrated": False}
    check = {"section": name, "key": "smallest_sensitivity", "about": name, "limit": 5.0, "passed": False}
    check |= {"explanation": name, "refuse": "if_shown_harmful", "level": 0.95}
    flip = {"image": name, "group": name, "class_name": name, "kind": "negative", "old": name, "new": name}
    each = {"low": 0, "high": 10, "images": 1, "confidence": 5.0, "right": 4.0}
    return {
        "verdict": "refused",
        "line": name,
        "checks": [check],
        "old": version | {"notes": [name]},
        "new": version | {"notes": []},
        "new_made_from_old": True,
        "head": "softmax",
        "test": {"name": name, "images": 9, "compared": 9, "of_classes_the_old_version_knows": 8, "groups": 3},
        "method": name,
        "sources": [{"source": name, "images": 9, "accuracy": pair}],
        "classes": [
            {"class": name, "status": "new", "images": 5, "groups": 2}
            | dict.fromkeys(("sensitivity", "specificity", "specificity_all_images"), pair)
        ],
        "overall": dict.fromkeys(("accuracy", "macro_f1"), pair)
        | dict.fromkeys(("accuracy_all_images", "positive_flips", "negative_flips"), share)
        | {"mcnemar_p": 0.5, "p_by_group": 0.0001},
        "calibration": {"error": pair, "error_all_images": share, "bins": {"old": [each], "new": [each]}},
        "flags": [{"images_of_classes": "known", "old": None, "new": share}],
        "flips": [flip | {"old_probability": 0.5, "new_probability": 0.5}],
        "unknown_classes": [{"image": name, "class": name}],
        "unreadable": [{"image": name, "reason": name}],
        "inside_a_model": [],
    }


def test_the_verdict_is_kept_in_a_copy_of_the_new_model(
    compare: Compare, tiny_model: Path, worse: Path, sorted_images: Path, tmp_path: Path
) -> None:
    rules, kept, refused = _rules(tmp_path), tmp_path / "kept.endocil", tmp_path / "refused.endocil"
    assert compare(tiny_model, tiny_model, sorted_images, "--rules", rules, "--keep", kept) == 0
    before, after = read_model_file(tiny_model), read_model_file(kept)
    assert after.manifest.gate is not None
    assert after.manifest.gate.passed
    assert after.manifest.gate.judged == before.digest != after.digest
    assert after.manifest.model_copy(update={"gate": None}) == before.manifest
    assert compare(tiny_model, worse, sorted_images, "--rules", rules, "--keep", refused) == 1
    verdict = read_model_file(refused).manifest.gate
    assert verdict is not None
    assert not verdict.passed
    assert verdict.line.startswith("REFUSED: ")
    assert compare(tiny_model, worse, sorted_images, "--rules", rules, "--keep", refused) == 2  # never overwritten
    assert compare(tiny_model, worse, sorted_images, "--keep", tmp_path / "other.endocil") == 2  # no rules, no verdict


def test_a_model_that_learns_or_forgets_has_no_verdict_any_more(
    compare: Compare, tiny_model: Path, sorted_images: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept.endocil"
    assert compare(tiny_model, tiny_model, sorted_images, "--rules", _rules(tmp_path), "--keep", kept) == 0
    content = read_model_file(kept)
    assert forget(content, images=[content.held_out.provenance[0].image]).content.manifest.gate is None
    model = Model.load(kept, changes=["train.epochs=1", "train.milestones=[]"])
    model.learn(list(np.zeros((4, 32, 32, 3), np.uint8)), ["black"] * 4)
    assert model.manifest.gate is None
    assert model.manifest.version == 2
