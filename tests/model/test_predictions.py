"""Predictions files: bit-exact round trip, files of other toolboxes, and the line each bad file earns."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import ArrayLike
from present import present

from endocil.errors import EndocilError
from endocil.metrics.metrics import accuracy, macro_f1
from endocil.model.prediction_files import read_predictions, read_run_predictions, write_predictions
from endocil.model.predictions import HEADS, Predictions


def make(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    classes: tuple[str, ...] | None = None,
    distances: ArrayLike | None = None,
    images: tuple[str, ...] | None = None,
    sources: tuple[str, ...] | None = None,
) -> Predictions:
    logits = np.asarray(scores, dtype=np.float32)
    n, c = logits.shape
    return Predictions(
        images=images or tuple(f"image-{i}.jpg" for i in range(n)),
        labels=np.asarray(labels, dtype=np.int64),
        classes=classes or tuple(f"class {i}" for i in range(c)),
        scores=logits,
        distances=None if distances is None else np.asarray(distances, dtype=np.float32),
        sources=sources or ("",) * n,
    )


def written(folder: Path, text: str, name: str = "task-0.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
names = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=8)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    n, c = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    scores = data.draw(arrays(np.float32, (n, c), elements=finite))
    distances = data.draw(st.none() | arrays(np.float32, (n, c), elements=finite))
    before = make(
        scores,
        data.draw(st.lists(st.integers(0, c - 1), min_size=n, max_size=n)),
        classes=tuple(data.draw(st.lists(names, min_size=c, max_size=c, unique=True))),
        distances=distances,
        images=tuple(data.draw(st.lists(names, min_size=n, max_size=n))),
        sources=tuple(data.draw(st.lists(st.just("") | names, min_size=n, max_size=n))),
    )
    path = tmp_path_factory.mktemp("round") / "task-0.csv"
    write_predictions(path, before)
    after = read_predictions(path)
    assert (after.images, after.classes, after.sources) == (before.images, before.classes, before.sources)
    assert same_bits(after.labels, before.labels)
    assert same_bits(after.scores, before.scores)
    assert (after.distances is None) == (distances is None)
    assert distances is None or same_bits(present(after.distances), present(before.distances))


def test_the_float32_whose_shortest_decimal_does_not_survive_rounding_twice_is_kept(tmp_path: Path) -> None:
    hard = np.float32(float.fromhex("0x1.5c87fap-84"))
    assert np.float32(float(str(hard))) != hard  # so the shortest decimal will not do
    write_predictions(tmp_path / "p.csv", make(np.array([[hard, -0.0]]), [0]))
    assert same_bits(read_predictions(tmp_path / "p.csv").scores, np.array([[hard, -0.0]], dtype=np.float32))


def test_the_file_holds_the_promised_columns_and_the_shortest_numbers(tmp_path: Path) -> None:
    p = make([[0.1, -2], [3, 1e-7]], [0, 1], classes=("polyp", "ulcer, deep"), distances=[[1.0, 2.0], [0.5, 0.3]],
             sources=("capsule", ""))  # fmt: skip
    write_predictions(tmp_path / "p.csv", p)
    assert (tmp_path / "p.csv").read_text() == (
        'image,label,source,score:polyp,"score:ulcer, deep",distance:polyp,"distance:ulcer, deep"\n'
        "image-0.jpg,polyp,capsule,0.1,-2.0,1.0,2.0\n"
        'image-1.jpg,"ulcer, deep",,3.0,1e-07,0.5,0.3\n'
    )


def test_without_exemplars_there_are_no_distance_columns(tmp_path: Path) -> None:
    write_predictions(tmp_path / "p.csv", make([[1, 2]], [0]))
    assert "distance" not in (tmp_path / "p.csv").read_text()
    assert read_predictions(tmp_path / "p.csv").distances is None


def test_ten_thousand_images_of_sixteen_classes_are_written_and_read_within_seconds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    p = make(rng.normal(size=(10_000, 16)), rng.integers(16, size=10_000), distances=rng.random((10_000, 16)))
    start = time.perf_counter()
    write_predictions(tmp_path / "p.csv", p)
    read_predictions(tmp_path / "p.csv")
    assert time.perf_counter() - start < 10  # about one second on an idle machine


def test_softmax_takes_the_highest_score_and_nearest_mean_the_smallest_distance() -> None:
    p = make([[1, 3, 2]], [0], distances=[[1, 3, 0.5]])
    assert [p.predicted(head).tolist() for head in HEADS] == [[1], [2]]
    assert p.predicted("softmax").dtype == np.int64


def test_predictions_of_images_of_unknown_class_are_neither_written_nor_scored(tmp_path: Path) -> None:
    p = make([[1, 3], [2, 0]], [1, -1])
    assert p.predicted().tolist() == [1, 0]
    with pytest.raises(EndocilError, match="expected predictions of images whose classes are known"):
        write_predictions(tmp_path / "p.csv", p)
    for metric in (accuracy, macro_f1):
        with pytest.raises(EndocilError, match="metrics need the class of every image"):
            metric(p, "softmax")
    assert accuracy(p.take([0]), "softmax") == 100.0


def test_ties_go_to_the_class_learnt_first() -> None:
    p = make([[1, 3, 3], [0, 0, 0]], [0, 1], distances=[[2.0, 1.0, 1.0], [0.0, -0.0, 0.0]])
    assert p.predicted("softmax").tolist() == [1, 0]
    assert p.predicted("nearest_mean").tolist() == [1, 0]


@pytest.mark.parametrize("head", ["nearest_mean", "knn"])
def test_a_head_that_is_not_there_is_refused(head: Any) -> None:
    with pytest.raises(
        EndocilError, match=f"head: expected softmax, or nearest_mean where exemplars were kept; got '{head}'"
    ):
        make([[1, 2]], [0]).predicted(head)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [2]}, "labels: expected indices into distinct classes; got 2 to 2"),
        ({"labels": [-2]}, "indices into distinct classes"),
        ({"labels": [0, 1]}, r"1 images, labels \(2,\), 1 sources"),
        ({"classes": ("a", "a")}, "distinct classes"),
        ({"classes": ("a", "b", "c")}, r"scores: expected the shape \(1, 3\), images by classes; got \(1, 2\)"),
        ({"distances": [[1]]}, "distances: expected the shape"),
        ({"distances": [[1, np.nan]]}, "distances: expected finite numbers"),
        ({"scores": [[1, np.inf]]}, "scores: expected finite numbers; got NaN or infinity"),
        ({"scores": np.zeros((0, 2)), "labels": []}, "expected images"),
    ],
)
def test_predictions_that_contradict_themselves_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EndocilError, match=message):
        make(**{"scores": [[1, 2]], "labels": [0], **change})


# Files of other toolboxes


def test_score_columns_may_be_named_by_the_class_alone_and_images_be_left_out(tmp_path: Path) -> None:
    p = read_predictions(written(tmp_path, "label,polyp,ulcer\nulcer,0.25,0.75\npolyp,1,0\n"))
    assert (p.images, p.classes, p.sources, p.distances) == (("0", "1"), ("polyp", "ulcer"), ("", ""), None)
    assert p.labels.tolist() == [1, 0]
    assert p.scores.tolist() == [[0.25, 0.75], [1, 0]]


def test_a_mark_before_the_header_blank_lines_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_bytes(b"\xef\xbb\xbfimage,label,a,b,source\r\nx,a,1,0,hospital\r\n\r\ny,b,0,1,\r\n\r\n")
    p = read_predictions(path)
    assert (p.images, p.sources) == (("x", "y"), ("hospital", ""))
    assert p.predicted("softmax").tolist() == [0, 1]


def test_predicted_names_become_one_hot_scores_over_all_labels_seen_up_to_that_file(tmp_path: Path) -> None:
    first = written(tmp_path, "image,label,predicted\nx,b,a\ny,a,a\n", "0.csv")
    second = written(tmp_path, "image,label,predicted\nx,b,c\ny,a,a\nz,c,c\nu,aa,b\n", "1.csv")
    run = read_run_predictions([first, second])
    assert [p.classes for p in run] == [("a", "b"), ("a", "b", "aa", "c")]
    assert run[1].scores.tolist() == [[0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0]]
    assert run[1].predicted("softmax").tolist() == [3, 0, 3, 1]


def test_columns_in_any_order_come_out_in_the_order_of_learning(tmp_path: Path) -> None:
    first = written(tmp_path, "label,m,z\nm,1,2\nz,3,4\n", "0.csv")
    second = written(tmp_path, "label,a,b,m,z\nm,1,2,3,4\nz,5,6,7,8\na,9,10,11,12\nb,0,0,0,0\n", "1.csv")
    run = read_run_predictions([first, second])
    assert run[1].classes == ("m", "z", "a", "b")
    assert run[1].scores[0].tolist() == [3, 4, 1, 2]
    assert run[1].labels.tolist() == [0, 1, 2, 3]


def test_a_class_without_test_images_is_named_by_a_prefixed_column(tmp_path: Path) -> None:
    p = read_predictions(written(tmp_path, "label,score:a,score:rare\na,1,2\n"))
    assert p.classes == ("a", "rare")


GOOD = "label,a,b\na,1,0\nb,0,1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected distinct columns, `label` among them; got ''"),
        ("label,a,b\n", "expected a line for each test image after the header; got none"),
        ("image,a,b\nx,1,0\n", "line 1: expected distinct columns, `label` among them; got 'image,a,b'"),
        ("label,a,a\na,1,0\n", "line 1: expected distinct columns"),
        ("label,image\na,x\n", "line 1: expected score columns, or else `predicted`; got label, image"),
        ("label,predicted,a\na,a,1\n", "line 1: expected score columns, or else `predicted`"),
        ("label,a,b\na,1,0\nB,0,1\n", "line 3, column label: expected one of a, b; got 'B'"),
        ("label,a,b\na,1,0\n\nb,0,x\n", "line 4, column b: expected a finite number; got 'x'"),
        ("label,a,b\na,1,\nb,0,1\n", "line 2, column b: expected a finite number; got ''"),
        ("label,a,b\na,nan,0\nb,0,1\n", "line 2, column a: expected a finite number; got 'nan'"),
        ("label,a,b\na,1,1e39\nb,0,1\n", "line 2, column b: expected a finite number; got '1e39'"),
        ("label,a,b\na,1\n", "line 2: expected 3 fields as in line 1; got 2"),
        ("label,predicted\na,a\nb,c\n", "line 3, column predicted: expected one of a, b; got 'c'"),
        (",label,a,b\n0,a,1,0\n1,b,0,1\n", r"line 1: expected classes as score columns \(.*\); got ''"),
        ("label,score:a,task\na,1,0\n", "line 1: expected classes as score columns .* got 'task'"),
        ("label,score:a,distance:b\na,1,0\n", "line 1: expected a column for each of a; got b"),
        ("label,score:a,distance:a\na,1,-inf\n", "line 2, column distance:a: expected a finite number; got '-inf'"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_line_what_was_expected_and_what_came(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(EndocilError, match=rf"task-0\.csv(, |: ){message}") as refusal:
        read_predictions(written(tmp_path, text))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("label,a,c\na,1,0\nc,0,1\n", "line 1: expected a column for each of a, b, c; got a, c"),
        (GOOD, "expected the next task, with classes the file before has not; got a, b"),
        ("label,predicted\na,a\nb,a\n", "expected the next task"),
        ("label,a,b,c\nb,1,0,0\nc,0,1,0\n", "expected test images of all classes seen so far; got none of a"),
        ("label,predicted\nc,c\n", "expected test images of all classes seen so far; got none of a, b"),
    ],
)
def test_a_run_whose_files_do_not_follow_each_other_is_refused(tmp_path: Path, second: str, message: str) -> None:
    files = [written(tmp_path, GOOD, "task-0.csv"), written(tmp_path, second, "task-1.csv")]
    with pytest.raises(EndocilError, match=rf"task-1\.csv(, |: ){message}"):
        read_run_predictions(files)


def test_a_missing_file_a_folder_and_no_files_at_all_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.csv", tmp_path):
        with pytest.raises(EndocilError, match="expected predictions as CSV text"):
            read_predictions(path)
    with pytest.raises(EndocilError, match="expected one file per task"):
        read_run_predictions([])


def test_bytes_that_are_no_csv_are_refused_in_one_line_that_can_be_printed(tmp_path: Path) -> None:
    for content in (bytes(range(256)) * 20, b"label,\xe8\n\xe9,1\n", b"a" * 200_000):
        (tmp_path / "weights.csv").write_bytes(content)
        with pytest.raises(EndocilError, match=r"weights\.csv") as refusal:
            read_predictions(tmp_path / "weights.csv")
        assert len(str(refusal.value).encode("utf-8").splitlines()) == 1
        assert len(str(refusal.value)) < 500 + len(str(tmp_path))
