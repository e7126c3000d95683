"""Leaks from train to test: the share of test images with a duplicate, group or neighbouring frame in train."""

import numpy as np

from endocil.data.near_duplicates import NearDuplicates
from endocil.data.splits import TEST, TRAIN
from endocil.data.table import ImageTable

DEFINITIONS = {
    "test_images": "images of the test part",
    "exact_in_train": (
        "share of the test images with an image in the training part that has the same 8-bit RGB pixels in full size; "
        "at 64 x 64 pixels where the images have no files, as synthetic ones"
    ),
    "near_in_train": (
        "share of the test images with an exact or near duplicate in the training part; at least so many where the "
        "data has over five million near pairs, as then only the strongest are compared"
    ),
    "group_in_train": "share of the test images with an image of their group in the training part",
    "frame_1_in_train": "share of the test images with a training frame of their group at most 1 away",
    "frame_2_in_train": "share of the test images with a training frame of their group at most 2 away",
}

RATES = {  # in words, after: of the test images, in train
    "exact_in_train": "the same image",
    "near_in_train": "an exact or near duplicate",
    "group_in_train": "an image of the group",
    "frame_1_in_train": "a frame at most 1 away",
    "frame_2_in_train": "a frame at most 2 away",
}

Leaks = dict[str, float | int | None]


def leak_rate(
    table: ImageTable, part: np.ndarray, *, digests: np.ndarray | None = None, near: NearDuplicates | None = None
) -> Leaks:
    """Numbers by the names of DEFINITIONS; None where the data has no groups, no frames or no fingerprints.

    Shares are of all test images: one without a group or a frame number does not count as a leak."""
    test = part == TEST
    exact = None if digests is None else exact_in_train(digests, part)
    close = None if near is None else near_in_train(near, part)
    if close is not None and exact is not None:
        close = close | exact
    grouped = bool(any(table.groups))
    numbered = grouped and any(frame >= 0 for frame in table.frames)
    return {
        "test_images": int(test.sum()),
        "exact_in_train": _share(exact, test),
        "near_in_train": _share(close, test),
        "group_in_train": _share(group_in_train(table, part), test) if grouped else None,
        "frame_1_in_train": _share(frame_in_train(table, part, 1), test) if numbered else None,
        "frame_2_in_train": _share(frame_in_train(table, part, 2), test) if numbered else None,
    }


def _share(leaking: np.ndarray | None, test: np.ndarray) -> float | None:
    return None if leaking is None else float(leaking[test].mean()) if test.any() else 0.0


def exact_in_train(digests: np.ndarray, part: np.ndarray) -> np.ndarray:
    """(N,) bool: a test image with the digest of a training image."""
    trained = digests[(part == TRAIN) & (digests != "")]
    return np.asarray((part == TEST) & np.isin(digests, trained))


def near_in_train(near: NearDuplicates, part: np.ndarray) -> np.ndarray:
    """(N,) bool: a test image in a pair with a training image."""
    leaking = np.zeros(len(part), bool)
    for one, other in ((near.left, near.right), (near.right, near.left)):
        leaking[one[(part[one] == TEST) & (part[other] == TRAIN)]] = True
    return leaking


def group_in_train(table: ImageTable, part: np.ndarray) -> np.ndarray:
    """(N,) bool: a test image whose group has a training image; "" is no group."""
    trained = {group for group, here in zip(table.groups, part, strict=True) if here == TRAIN} - {""}
    known = np.array([group in trained for group in table.groups], bool)
    return np.asarray(known & (part == TEST))


def frame_in_train(table: ImageTable, part: np.ndarray, distance: int) -> np.ndarray:
    """(N,) bool: a test image with a training frame of its group at most `distance` before or after it.

    Another image of the same frame counts too: some sets have a frame twice, with two findings."""
    places = list(zip(table.groups, table.frames, strict=True))
    trained = {place for place, here in zip(places, part, strict=True) if here == TRAIN}
    away = range(-distance, distance + 1)
    leaking = [
        bool(group) and frame >= 0 and any(frame + step >= 0 and (group, frame + step) in trained for step in away)
        for group, frame in places
    ]
    return np.asarray(np.array(leaking, bool) & (part == TEST))
