"""What the memory keeps, how it shares a budget, and where each exemplar comes from."""

from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import make_images
from present import present

from endocil import EndocilError
from endocil.components.selection import Selection
from endocil.data.batches import ImageSet
from endocil.data.cache import Images
from endocil.learning.features import l2_normalise
from endocil.learning.memory import SELECTORS, Candidates, Choice, ExemplarMemory, build_selector, even_share

SIZE = 32  # of make_images


def first(candidates: Candidates, n: int) -> Selection:
    """The first n candidates."""
    return Selection(torch.arange(min(n, len(candidates.features))))


def fill(memory: ExemplarMemory, images: Images, labels: list[int], task: int) -> list[Choice]:
    rows = torch.nonzero(torch.isin(images.labels, torch.tensor(labels))).flatten()
    candidates = ImageSet.of(images, rows) + memory.images()
    features = torch.randn(len(candidates), 6, generator=torch.Generator().manual_seed(task))
    choices, places = memory.choose(candidates, features, features[:, :3], labels, task)
    memory.keep(candidates, places, images.table.classes, task=task)
    return choices


def names(memory: ExemplarMemory) -> dict[int, list[str]]:
    """The exemplars of each class, first choice first."""
    kept = zip(memory.labels.tolist(), memory.exemplars.provenance, strict=True)
    found: dict[int, list[str]] = {}
    for label, one in kept:
        found.setdefault(label, []).append(one.image)
    return found


@pytest.mark.parametrize("name", sorted(SELECTORS))
def test_every_selector_keeps_distinct_images_of_the_class_and_a_small_class_whole(name: str) -> None:
    images = make_images([9, 3, 7])
    memory = ExemplarMemory(per_class=5, select=build_selector(name, {}), size=SIZE)
    choices = fill(memory, images, [0, 1, 2], 0)
    assert [(choice.label, choice.kept, choice.of) for choice in choices] == [(0, 5, 9), (1, 3, 3), (2, 5, 7)]
    row_of = {name: row for row, name in enumerate(images.table.ids)}
    for label, kept in names(memory).items():
        rows = [row_of[name] for name in kept]
        assert len(set(rows)) == len(rows)
        assert set(images.table.labels[rows].tolist()) == {label}
    pixels = images.gather(torch.tensor([row_of[one.image] for one in memory.exemplars.provenance]))
    assert torch.equal(memory.exemplars.pixels, pixels)


def test_the_mmd_selector_reports_its_measure_beside_the_papers_bound() -> None:
    memory = ExemplarMemory(per_class=5, select=build_selector("mmd", {"kernels": 3}), size=SIZE)
    choice = fill(memory, make_images([20]), [0], 0)[0]
    assert 0.0 < present(choice.mmd2) <= present(choice.bound)
    assert choice.bound == pytest.approx(2 * 3 * (1 + torch.tensor(5.0).log().item()) / 5)


@pytest.mark.parametrize("options", [{"bandwidth": "literal"}, {"self_pairs": True}, {"kernels": 1}, {"scale": 3.0}])
def test_each_option_of_the_mmd_selector_changes_its_measure(options: dict[str, Any]) -> None:
    images = make_images([20])
    measures = [
        fill(ExemplarMemory(per_class=5, select=build_selector("mmd", given), size=SIZE), images, [0], 0)[0].mmd2
        for given in ({}, options)
    ]
    assert measures[0] != measures[1]


def test_a_total_budget_is_shared_and_old_classes_give_up_their_last_choices() -> None:
    images = make_images([10, 10, 10, 10])
    memory = ExemplarMemory(total=13, select=first, size=SIZE)
    fill(memory, images, [0, 1], 0)
    assert list(memory.counts().values()) == [6, 6]
    before = names(memory)[0]
    fill(memory, images, [2, 3], 1)
    assert list(memory.counts().values()) == [3, 3, 3, 3]
    assert names(memory)[0] == before[:3]


def test_what_a_small_class_leaves_over_goes_to_the_others() -> None:
    images = make_images([2, 20, 20])
    memory = ExemplarMemory(total=21, select=first, size=SIZE)
    fill(memory, images, [0, 1], 0)
    assert list(memory.counts().values()) == [2, 19]
    fill(memory, images, [2], 1)
    assert list(memory.counts().values()) == [2, 9, 9]
    assert memory.planned([[2, 20], [0, 0, 20]]) == [2, 9, 9]
    assert memory.planned([[2, 20], [5, 0, 20]]) == [7, 7, 7]  # a class comes back: its new images compete as well


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(0, 200))
def test_the_even_share_is_the_largest_that_fits(available: list[int], total: int) -> None:
    share = even_share(available, total)
    assert sum(min(share, n) for n in available) <= total
    if share < max(available):
        assert sum(min(share + 1, n) for n in available) > total


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(1, 15), min_size=1, max_size=3), min_size=1, max_size=4), st.integers(12, 60))
def test_a_total_budget_is_never_exceeded_and_shared_evenly(tasks: list[list[int]], total: int) -> None:
    counts = [n for task in tasks for n in task]
    images, memory = make_images(counts, size=16), ExemplarMemory(total=total, select=first, size=16)
    ends = [0, *accumulate(len(task) for task in tasks)]
    spans = [slice(start, end) for start, end in pairwise(ends)]
    for task, span in enumerate(spans):
        before = names(memory)
        fill(memory, images, list(range(span.start, span.stop)), task)
        kept = memory.counts()
        assert len(memory) <= total
        assert all(n <= counts[label] for label, n in kept.items())
        had = {label: len(before.get(label, range(counts[label]))) for label in kept}
        cut = {kept[label] for label in kept if kept[label] < had[label]}  # those that gave something up
        assert len(cut) <= 1
        assert all(n <= share for share in cut for n in kept.values())
        assert all(names(memory)[label] == rows[: kept[label]] for label, rows in before.items())
        planned = [[0] * one.start + counts[one] for one in spans[: task + 1]]
        assert memory.planned(planned) == list(kept.values())


def test_new_images_of_a_known_class_compete_with_its_exemplars() -> None:
    images = make_images([10, 10])
    memory = ExemplarMemory(per_class=4, select=first, size=SIZE)
    fill(memory, images, [0], 0)
    fill(memory, images, [0, 1], 1)
    assert {one.task for one in memory.exemplars.provenance} == {1}  # `first` takes the new ones
    assert len(memory) == 8


def test_records_say_where_each_exemplar_comes_from() -> None:
    images = make_images([5, 5])
    memory = ExemplarMemory(per_class=2, select=first, size=SIZE)
    fill(memory, images, [0], 0)
    fill(memory, images, [1], 1)
    assert memory.records() == [
        ("class-00/0000.png", "class-00", 0, 0, "patient-0", "gastroscope"),
        ("class-00/0001.png", "class-00", 1, 0, "patient-0", "capsule"),
        ("class-01/0005.png", "class-01", 0, 1, "patient-1", "capsule"),
        ("class-01/0006.png", "class-01", 1, 1, "patient-2", "gastroscope"),
    ]


def test_exemplars_are_loaded_in_the_order_of_classes_and_of_choice() -> None:
    images = make_images([5, 5])
    memory = ExemplarMemory(per_class=3, select=first, size=SIZE)
    empty = ExemplarMemory(per_class=3, select=first, size=SIZE)
    empty.load(memory.exemplars, images.table.classes)
    assert len(empty) == 0
    fill(memory, images, [0, 1], 2)
    other = ExemplarMemory(per_class=3, select=first, size=SIZE)
    shuffled = memory.exemplars.take([4, 0, 5, 2, 1, 3])
    other.load(shuffled, images.table.classes)
    assert other.records() == memory.records()
    assert torch.equal(other.images().gather(torch.arange(6)), memory.images().gather(torch.arange(6)))
    assert other.images().from_memory.all()


def test_a_random_choice_depends_on_the_seed_the_task_and_the_class_alone() -> None:
    images = make_images([30, 30])
    chosen = []
    for labels in ([0, 1], [1]):
        memory = ExemplarMemory(per_class=5, select=build_selector("random", {}), seed=3, size=SIZE)
        fill(memory, images, labels, 0)
        chosen.append(names(memory)[1])
    assert chosen[0] == chosen[1]


def test_unit_features_have_length_one_and_zero_stays_zero() -> None:
    features = l2_normalise(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    assert features.norm(dim=1).tolist() == pytest.approx([1.0, 0.0])


def test_impossible_budgets_and_unknown_selectors_are_refused() -> None:
    with pytest.raises(EndocilError, match=r"set memory\.per_class or memory\.total, one of them"):
        ExemplarMemory(select=first, size=SIZE)
    with pytest.raises(EndocilError, match="less than one image for each of 3 classes"):
        ExemplarMemory(total=2, select=first, size=SIZE).quota([5, 5, 5])
    with pytest.raises(
        EndocilError, match=r"unknown memory\.select 'best'; known: distance, entropy, mean, mmd, random"
    ):
        build_selector("best", {})
    with pytest.raises(
        EndocilError, match="unknown memory key 'kernel'; known: bandwidth, kernels, refine, scale, self_pairs"
    ):
        build_selector("mmd", {"kernel": 3})
