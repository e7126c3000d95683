"""The next task of a model: ids that stay, labels among all classes, the same image once."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pictures import make_images

from endocil import EndocilError
from endocil.data.batches import ImageSet
from endocil.data.cache import Images
from endocil.learning.memory import KeptImages, Provenance, no_images
from endocil.model.new_images import NewImages, NewTask, as_next_task

OLD = make_images([3, 2])
NEW = make_images([2, 2, 2], seed=5)


def exemplars(images: Images = OLD) -> KeptImages:
    origins = tuple(
        Provenance(name, images.table.classes[label], 0, 0, "p", "d")
        for name, label in zip(images.table.ids, images.table.labels, strict=True)
    )
    return KeptImages(images.pixels, origins)


def join(classes: tuple[str, ...], kept: KeptImages, held: KeptImages, new: NewImages) -> NewTask:
    return as_next_task(classes, (), kept, held, new)


def ids(images: ImageSet) -> tuple[str, ...]:
    return tuple(images.images.describe(row)[0] for row in images.rows.tolist())


def newcomers(images: Images, ids: tuple[str, ...] | None = None) -> NewImages:
    table = replace(images.table, ids=ids or tuple(f"new/{i}.png" for i in range(len(images.table))))
    return NewImages(replace(images, table=table), np.full(len(table), "train", dtype="U10"))


def test_the_new_pixels_are_not_copied_and_join_the_exemplars_in_a_batch() -> None:
    step = join(("class-00", "class-01"), exemplars(), no_images(32), newcomers(NEW))
    assert step.notes == ()
    assert isinstance(step.train.images, Images)
    assert step.train.images.pixels.data_ptr() == NEW.pixels.data_ptr()
    both = step.train + ImageSet.of(OLD, torch.arange(5), from_memory=True)
    index = torch.tensor([2, 6, 5, 10, 0])
    expected = torch.stack([NEW.pixels[2], OLD.pixels[0], NEW.pixels[5], OLD.pixels[4], NEW.pixels[0]])
    assert torch.equal(both.gather(index), expected)
    assert torch.equal(both.gather(index[:0]), expected[:0])
    assert both.from_memory.tolist() == [False] * 6 + [True] * 5
    assert both.labels.tolist() == [0, 0, 1, 1, 2, 2, 0, 0, 0, 1, 1]


def test_new_classes_stand_behind_the_old_ones_in_alphabetical_order() -> None:
    table = replace(NEW.table, classes=("zebra", "class-01", "apple"))
    step = join(("class-00", "class-01"), exemplars(), no_images(32), newcomers(replace(NEW, table=table)))
    assert step.classes == ("class-00", "class-01", "apple", "zebra")
    assert step.train.labels.tolist() == [3, 3, 1, 1, 2, 2]


@pytest.mark.parametrize("held", [False, True])
def test_an_image_that_the_model_holds_is_left_out_and_told(held: bool) -> None:
    kept, none = exemplars(), no_images(32)
    same = newcomers(OLD, OLD.table.ids)
    step = join(("class-00", "class-01"), *((none, kept) if held else (kept, none)), same)
    assert len(step.train) == 0
    assert step.notes == ("5 new images are left out: the model holds them already",)


def test_an_exemplar_under_another_name_is_not_held_out() -> None:
    given = newcomers(OLD, tuple("abcde"))
    given.part[:] = ["train", "validation", "train", "test", "train"]
    step = join(("class-00", "class-01"), exemplars(), no_images(32), given)
    assert ids(step.train) == ("a", "c", "e")  # learned from once more, as in a run
    assert len(step.held_out) == 0
    assert step.notes == ("2 new images are left out: the model holds them already",)


def test_a_held_out_image_under_another_name_is_never_learned_from() -> None:
    pixels = torch.cat([OLD.pixels[:2], NEW.pixels[:3]])
    labels = np.array([0, 0, 0, 1, 1])
    table = replace(OLD.table, ids=(OLD.table.ids[0], *"bcde"), labels=labels, classes=("class-00", "new"))
    step = join(
        ("class-00", "class-01"),
        no_images(32),
        exemplars(),
        newcomers(replace(OLD, table=table, pixels=pixels), table.ids),
    )
    assert ids(step.train) == ("c", "d", "e")
    assert torch.equal(step.train.gather(torch.arange(3)), NEW.pixels[:3])
    assert step.notes == (
        "2 new images are left out: the model holds them already (1 as held-out images of another name)",
    )
    other = replace(table, classes=("other", "new"))
    with pytest.raises(EndocilError, match="is 'other' among the new images, but the model holds it as"):
        join(
            ("class-00", "class-01"),
            no_images(32),
            exemplars(),
            newcomers(replace(OLD, table=other, pixels=pixels), ("x", *"bcde")),
        )


def test_another_image_of_the_same_name_gets_a_number() -> None:
    names = (OLD.table.ids[0], OLD.table.ids[1], "a.png", "b.png", "c.png", f"{OLD.table.ids[0]} (2)")
    step = join(("class-00", "class-01"), exemplars(), no_images(32), newcomers(NEW, names))
    assert ids(step.train) == (f"{names[0]} (2)", f"{names[1]} (2)", "a.png", "b.png", "c.png", f"{names[0]} (2) (2)")
    assert step.notes == ("3 new images have the name of another image; a number is put behind it",)


def test_the_same_image_as_another_class_is_refused() -> None:
    table = replace(OLD.table, classes=("class-00", "other"))
    with pytest.raises(EndocilError, match="is 'other' among the new images, but the model holds it as"):
        join(("class-00", "class-01"), exemplars(), no_images(32), newcomers(replace(OLD, table=table), OLD.table.ids))
