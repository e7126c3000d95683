"""Near duplicates: planted copies are found, different pictures are not, whatever the order and the blocks."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scenes import COPIES, originals, prints_of, random_prints, write_folder

from endocil.data import near_duplicates as module
from endocil.data import near_duplicates as search
from endocil.data.fingerprints import Fingerprints, fingerprints
from endocil.data.near_duplicates import NearDuplicates, near_duplicate_groups, near_duplicates, near_duplicates_of
from endocil.datasets import synthetic
from endocil.datasets.folder import load


def pairs_by_id(prints: Fingerprints, near: NearDuplicates) -> dict[tuple[str, str], float]:
    rows = zip(near.left.tolist(), near.right.tolist(), near.score.tolist(), strict=True)
    return {(prints.ids[left], prints.ids[right]): score for left, right, score in rows}


def groups_by_id(prints: Fingerprints, near: NearDuplicates) -> dict[str, str]:
    return {name: prints.ids[first] for name, first in zip(prints.ids, near.first, strict=True)}


@pytest.mark.parametrize("copy", sorted(COPIES))
def test_a_planted_copy_is_found(copy: str, tmp_path: Path) -> None:
    pictures = {}
    for number, picture in enumerate(originals(30)):
        pictures[f"a/{number:02d}.png"] = picture
        pictures[f"b/{number:02d}.jpg"] = COPIES[copy](picture)
    table = load(root=str(write_folder(tmp_path / "data", pictures)))
    prints = fingerprints(table, folder=tmp_path)
    found = set(pairs_by_id(prints, near_duplicates(prints)))
    planted = {(f"a/{number:02d}.png", f"b/{number:02d}.jpg") for number in range(30)}
    assert len(found & planted) >= 29
    assert found <= planted


def test_different_pictures_are_hardly_ever_paired(tmp_path: Path) -> None:
    prints = fingerprints(synthetic.load(images=200, imbalance=1.0), folder=tmp_path)
    # with 2,000 images of this set, 2 of 1,999,000 pairs
    assert len(near_duplicates(prints).left) == 0


def test_blocks_give_what_brute_force_gives() -> None:
    prints = random_prints(157)
    details = prints.details.astype(float)
    coarse = np.rint(details.reshape(-1, 16, 2, 16, 2).mean((2, 4))).reshape(len(details), -1)
    expected = {}
    for i, one in enumerate(prints.ids):
        for j, other in enumerate(prints.ids):
            if one < other and cosine(coarse[i], coarse[j]) >= search.SEARCH:
                score = best_overlay(details[i], details[j])
                if score >= search.SAME:
                    expected[one, other] = score
    for block in (7, 64, 2048):
        found = pairs_by_id(prints, near_duplicates(prints, block=block))
        assert found.keys() == expected.keys()
        assert all(abs(score - expected[pair]) < 1e-5 for pair, score in found.items())
    assert 50 < len(expected) < 157 * 156 / 2  # some, and not all


def best_overlay(one: np.ndarray, other: np.ndarray) -> float:
    """As it is where that is enough, else the best of all shifts."""
    middle = one[2:30, 2:30].ravel()
    scores = [cosine(middle, other[y : y + 28, x : x + 28].ravel()) for y in range(5) for x in range(5)]
    return scores[12] if scores[12] >= search.SAME else max(scores)


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))


def test_the_order_of_the_table_has_no_influence() -> None:
    prints = random_prints(120, seed=1)
    near = near_duplicates(prints)
    shuffled = prints.take(np.random.default_rng(0).permutation(120))
    again = near_duplicates(shuffled)
    assert pairs_by_id(prints, near) == pairs_by_id(shuffled, again)
    assert groups_by_id(prints, near) == groups_by_id(shuffled, again)


def test_groups_are_connected_by_pairs_and_named_after_their_smallest_id() -> None:
    prints = random_prints(200, seed=2)
    near = near_duplicates(prints)
    expected = connected(prints.ids, pairs_by_id(prints, near))
    assert groups_by_id(prints, near) == expected
    assert len(set(expected.values())) < 200


def connected(ids: Iterable[str], pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    group = {name: {name} for name in ids}
    for one, other in pairs:
        together = group[one] | group[other]
        for name in together:
            group[name] = together
    return {name: min(members) for name, members in group.items()}


def test_pictures_without_detail_are_paired_with_nothing_but_exact_copies_are_one_group() -> None:
    pixels = np.zeros((4, 64, 64, 3), np.uint8)
    pixels[2:] = 140
    prints = prints_of(["d", "b", "c", "a"], pixels)
    near = near_duplicates(prints)
    assert len(near.left) == 0
    assert groups_by_id(prints, near) == {"d": "b", "b": "b", "c": "a", "a": "a"}


@pytest.mark.parametrize("block", [7, 2048])
def test_of_too_many_pairs_the_strongest_are_kept_but_all_are_counted_and_make_groups(
    monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    prints = random_prints(60, seed=3, copies=30)
    whole = near_duplicates(prints)
    assert whole.complete
    monkeypatch.setattr(module, "PARTNERS", 2)
    assert near_duplicates(prints, block=block).complete  # there are not too many
    monkeypatch.setattr(module, "KEPT", 100)
    few = near_duplicates(prints, block=block)
    assert few.total == len(whole.left) > len(few.left)
    assert not few.complete
    assert np.array_equal(few.first, whole.first)
    everything, kept = pairs_by_id(prints, whole), pairs_by_id(prints, few)
    assert kept.items() <= everything.items()
    for left in {one for one, _ in everything}:
        strongest = sorted((score for (one, _), score in everything.items() if one == left), reverse=True)[:2]
        assert sorted((s for (one, _), s in kept.items() if one == left), reverse=True) == strongest


def test_every_pair_of_many_alike_pictures_is_counted() -> None:
    picture = np.asarray(originals(1)[0].resize((64, 64)))
    near = near_duplicates(prints_of([f"{i:03d}" for i in range(450)], np.repeat(picture[None], 450, axis=0)))
    assert near.total == len(near.left) == 450 * 449 // 2


def test_groups_of_a_folder_are_kept_and_cover_unreadable_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = originals(2)
    copy = COPIES["brighter"](one)
    root = write_folder(tmp_path / "data", {"a/2.png": one, "a/3.png": other, "b/1.png": copy})
    (root / "a" / "0.png").write_bytes(b"damaged")
    table = load(root=str(root))
    expected = ("a/0.png", "a/2.png", "a/3.png", "a/2.png")
    assert near_duplicate_groups(table, folder=tmp_path) == expected
    monkeypatch.setattr(search, "near_pairs", None)  # what is kept is not searched again
    assert near_duplicate_groups(table, folder=tmp_path) == expected
    prints = fingerprints(table, folder=tmp_path)
    assert near_duplicates_of(table, prints, folder=tmp_path).first.tolist() == [0, 1, 2, 1]


def test_no_images_and_one_image_make_no_pairs() -> None:
    picture = np.asarray(Image.effect_noise((64, 64), 60).convert("RGB"))[None]
    assert len(near_duplicates(prints_of((), picture[:0])).left) == 0
    alone = near_duplicates(prints_of(("a",), picture))
    assert (len(alone.left), alone.first.tolist()) == (0, [0])
