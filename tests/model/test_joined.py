"""Exemplars and new images in one table: rows from both, ids that stay, the same image once."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pictures import make_images

from endocil import EndocilError
from endocil.data.cache import Images
from endocil.learning.memory import KeptImages, Provenance, no_images
from endocil.runs.learn import KEPT, Newcomers, join

OLD = make_images([3, 2])
NEW = make_images([2, 2, 2], seed=5)


def exemplars(images: Images = OLD) -> KeptImages:
    origins = tuple(
        Provenance(name, images.table.classes[label], 0, 0, "p", "d")
        for name, label in zip(images.table.ids, images.table.labels, strict=True)
    )
    return KeptImages(images.pixels, origins)


def newcomers(images: Images, ids: tuple[str, ...] | None = None) -> Newcomers:
    table = replace(images.table, ids=ids or tuple(f"new/{i}.png" for i in range(len(images.table))))
    return Newcomers(replace(images, table=table), np.full(len(table), "train", dtype="U10"))


def test_rows_come_from_both_and_the_new_pixels_are_not_copied() -> None:
    images, notes = join(("class-00", "class-01"), exemplars(), no_images(32), newcomers(NEW))
    assert notes == ()
    assert images.new.data_ptr() == NEW.pixels.data_ptr()
    index = torch.tensor([7, 0, 10, 4, 5])
    expected = torch.stack([NEW.pixels[2], OLD.pixels[0], NEW.pixels[5], OLD.pixels[4], NEW.pixels[0]])
    assert torch.equal(images.gather(index), expected)
    assert torch.equal(images.gather(index[:0]), expected[:0])
    assert images.part.tolist() == [KEPT] * 5 + ["train"] * 6


def test_new_classes_stand_behind_the_old_ones_in_alphabetical_order() -> None:
    table = replace(NEW.table, classes=("zebra", "class-01", "apple"))
    images, _ = join(
        ("class-00", "class-01"), exemplars(), no_images(32), newcomers(replace(NEW, table=table))
    )
    assert images.table.classes == ("class-00", "class-01", "apple", "zebra")
    assert images.table.labels.tolist() == [0, 0, 0, 1, 1, 3, 3, 1, 1, 2, 2]


@pytest.mark.parametrize("held", [False, True])
def test_an_image_that_the_bundle_holds_is_left_out_and_told(held: bool) -> None:
    kept, none = exemplars(), no_images(32)
    same = newcomers(OLD, OLD.table.ids)
    images, notes = join(("class-00", "class-01"), *((none, kept) if held else (kept, none)), same)
    assert len(images.table) == (0 if held else 5)
    assert notes == ("5 new images are left out: the bundle holds them already",)


def test_an_exemplar_under_another_name_is_not_held_out() -> None:
    given = newcomers(OLD, tuple("abcde"))
    given.part[:] = ["train", "validation", "train", "test", "train"]
    images, notes = join(("class-00", "class-01"), exemplars(), no_images(32), given)
    assert images.table.ids[5:] == ("a", "c", "e")  # learned from once more, as in a run
    assert images.part[5:].tolist() == ["train"] * 3
    assert notes == ("2 new images are left out: the bundle holds them already",)


def test_a_held_out_image_under_another_name_is_never_learned_from() -> None:
    pixels = torch.cat([OLD.pixels[:2], NEW.pixels[:3]])
    labels = np.array([0, 0, 0, 1, 1])
    table = replace(OLD.table, ids=(OLD.table.ids[0], *"bcde"), labels=labels, classes=("class-00", "new"))
    images, notes = join(
        ("class-00", "class-01"),
        no_images(32),
        exemplars(),
        newcomers(replace(OLD, table=table, pixels=pixels), table.ids),
    )
    assert images.table.ids == ("c", "d", "e")
    assert torch.equal(images.gather(torch.arange(3)), NEW.pixels[:3])
    assert notes == (
        "2 new images are left out: the bundle holds them already (1 as held-out images of another name)",
    )
    other = replace(table, classes=("other", "new"))
    with pytest.raises(EndocilError, match="is 'other' among the new images, but the bundle holds it as"):
        join(
            ("class-00", "class-01"),
            no_images(32),
            exemplars(),
            newcomers(replace(OLD, table=other, pixels=pixels), ("x", *"bcde")),
        )


def test_another_image_of_the_same_name_gets_a_number() -> None:
    ids = (OLD.table.ids[0], OLD.table.ids[1], "a.png", "b.png", "c.png", f"{OLD.table.ids[0]} (2)")
    images, notes = join(("class-00", "class-01"), exemplars(), no_images(32), newcomers(NEW, ids))
    assert images.table.ids[5:] == (
        f"{ids[0]} (2)",
        f"{ids[1]} (2)",
        "a.png",
        "b.png",
        "c.png",
        f"{ids[0]} (2) (2)",
    )
    assert notes == ("3 new images have the name of another image; a number is put behind it",)


def test_the_same_image_as_another_class_is_refused() -> None:
    table = replace(OLD.table, classes=("class-00", "other"))
    with pytest.raises(EndocilError, match="is 'other' among the new images, but the bundle holds it as"):
        join(
            ("class-00", "class-01"),
            exemplars(),
            no_images(32),
            newcomers(replace(OLD, table=table), OLD.table.ids),
        )
