"""Sets of images and the batches cut from them."""

import pytest
import torch
from pictures import make_images

from endocil import EndocilError
from endocil.data.augment import IMAGENET, Augmentation
from endocil.data.batches import ImageSet, cut, plain_batches, training_batches
from endocil.data.seeding import generator

CPU = torch.device("cpu")


def everything(counts: list[int]) -> ImageSet:
    images = make_images(counts)
    return ImageSet.of(images, torch.arange(len(images.table)))


def test_an_epoch_has_every_image_once_with_its_label() -> None:
    images = everything([7, 6])
    seen = torch.cat([batch.labels for batch in training_batches(images, 4, Augmentation(), 0, (1, 2), CPU)])
    assert torch.bincount(seen).tolist() == [7, 6]


@pytest.mark.parametrize(("n", "sizes"), [(8, [4, 4]), (9, [4, 5]), (10, [4, 4, 2]), (1, [1]), (5, [5])])
def test_a_remainder_of_one_image_joins_the_batch_before(n: int, sizes: list[int]) -> None:
    assert [len(batch) for batch in cut(torch.arange(n), 4)] == sizes


def test_batches_of_one_image_are_refused() -> None:
    with pytest.raises(EndocilError, match="batch norm needs at least 2"):
        cut(torch.arange(3), 1)


def test_order_and_augmentation_depend_on_the_key_alone() -> None:
    images = everything([7, 6])
    one, same, other = (
        list(training_batches(images, 4, Augmentation(), 0, key, CPU)) for key in [(0, 0, 3), (0, 0, 3), (0, 0, 4)]
    )
    assert all(torch.equal(a.images, b.images) for a, b in zip(one, same, strict=True))
    assert not torch.equal(one[0].images, other[0].images)


def test_exemplars_are_known_in_a_batch() -> None:
    images = make_images([4, 4])
    data = ImageSet.of(images, torch.arange(4)) + ImageSet.of(images, torch.arange(4, 8), from_memory=True)
    for batch in training_batches(data, 4, Augmentation(), 0, (0,), CPU):
        assert batch.from_memory.tolist() == (batch.labels == 1).tolist()
        assert torch.equal(batch.labels, batch.batch_labels)


def test_counts_cover_classes_without_images() -> None:
    assert everything([3, 2]).counts(4).tolist() == [3, 2, 0, 0]


def test_hold_out_takes_as_many_of_each_class_but_never_the_only_image() -> None:
    images = everything([6, 1, 3])
    rest, held = images.hold_out(2, generator(0))
    assert held.counts(3).tolist() == [2, 0, 2]
    assert rest.counts(3).tolist() == [4, 1, 1]
    assert sorted([*rest.rows.tolist(), *held.rows.tolist()]) == list(range(10))


def test_plain_batches_keep_the_order_and_are_not_augmented() -> None:
    images = everything([3, 2])
    whole = torch.cat(list(plain_batches(images, 2, CPU, IMAGENET)))
    assert torch.equal(whole, next(plain_batches(images, 5, CPU, IMAGENET)))
