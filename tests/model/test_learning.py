"""A model that learns is the run that goes on, bit for bit, also when it is stopped in between."""

import itertools
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from life import ALL_METHODS, QUOTA, Life, Lives, differing, new_method, state_of
from lives import all_of, content_of, exemplars_of, newcomers_of

from endocil.data.batches import ImageSet
from endocil.data.cache import Images
from endocil.learning.checkpoint import FILE
from endocil.methods import METHODS
from endocil.model.file import ModelFile, read_model_file, write_model_file
from endocil.model.manifest import Terms
from endocil.model.model import Model
from endocil.model.new_images import NewTask

LEARNERS = [name for name in ALL_METHODS if not METHODS[name].joint]
TERMS = Terms()


class StoppedError(Exception):
    pass


def stop_after(n: int) -> Callable[[dict[str, Any]], None]:
    left = itertools.count(n - 1, -1)

    def show(record: dict[str, Any]) -> None:
        if record["event"] == "epoch" and next(left) == 0:
            raise StoppedError

    return show


def saved(life: Life, name: str, folder: Path) -> ModelFile:
    """The life's model after two tasks, written and read."""
    write_model_file(folder / "model.endocil", content_of(life, name, 2))
    return read_model_file(folder / "model.endocil")


def learned(
    content: ModelFile,
    life: Life,
    folder: Path,
    extra: tuple[int, ...] = (),
    *,
    changes: tuple[str, ...] = (),
    terms: Terms = TERMS,
    show: Callable[[dict[str, Any]], None] = lambda record: None,
) -> ModelFile:
    """The model after the life's third task, learned in this folder."""
    folder.mkdir(exist_ok=True)
    model = Model.from_file(content, changes=changes)
    model.learn_in_folder(next_step(model, life, extra), folder, terms=terms, show=show)
    model.calibrate()
    return model.file()


def next_step(model: Model, life: Life, extra: tuple[int, ...] = ()) -> NewTask:
    return model.next_task(newcomers_of(life, life.scenario.tasks[2].new, extra))


def same(content: ModelFile, life: Life) -> None:
    assert differing(all_of(content), state_of(life.method)) == []
    expected = exemplars_of(life)
    assert [origin.image for origin in content.exemplars.provenance] == [origin.image for origin in expected.provenance]
    assert torch.equal(content.exemplars.pixels, expected.pixels)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_learned_model_is_the_next_task_of_the_run_bit_for_bit(
    name: str, images: Images, lives: Lives, tmp_path: Path
) -> None:
    life = lives.after(name, 2, tmp_path / "life")
    before = saved(life, name, tmp_path)
    after = learned(before, life, tmp_path / "work")
    whole = lives.whole(name)
    same(after, whole)
    assert after.exemplars.provenance == exemplars_of(whole).provenance
    assert after.classes == images.table.classes
    assert after.manifest.increments == (2, 1, 3)
    assert after.manifest.metrics is None
    version = after.manifest.history[-1]
    assert (version.by, version.parent) == ("learn", before.digest)
    assert version.added == {"class-03": 3, "class-04": 10, "class-05": 7}


def test_a_total_budget_is_shared_as_in_the_run(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path / "life", new_method("icarl"), total=22).live(2)
    before = saved(life, "icarl", tmp_path)
    after = learned(before, life, tmp_path / "work")
    life.step(life.scenario.tasks[2])
    same(after, life)
    counts = [len(rows) for rows in life.kept_rows().values()]
    assert counts == [3, 3, 3, 3, 3, 3]


@pytest.mark.parametrize("name", ["bic", "dgr", "endocil", "foster"])
def test_more_images_of_known_classes_are_learned_and_compete_with_their_exemplars(
    name: str, images: Images, lives: Lives, tmp_path: Path
) -> None:
    life = lives.after(name, 2, tmp_path / "life")
    before = saved(life, name, tmp_path)
    kept = {origin.image for origin in before.exemplars.provenance}
    known = life.scenario.rows("test", slice(0, 2)).tolist()
    assert not kept & {images.table.ids[row] for row in known}
    after = learned(before, life, tmp_path / "work", tuple(known))
    task = life.scenario.tasks[2]
    rows = sorted([*life.scenario.rows("train", task.new).tolist(), *known])
    life.learner.learn(task, ImageSet.of(images, torch.tensor(rows)), images.table.classes)
    same(after, life)
    gained = after.manifest.classes[0].images - before.manifest.classes[0].images
    assert gained == sum(images.table.labels[row] == 0 for row in known) > 0


@pytest.mark.parametrize("name", ["bic", "dgr", "foster"])
def test_a_step_stopped_at_any_epoch_goes_on_to_the_same_bits(name: str, lives: Lives, tmp_path: Path) -> None:
    life = lives.after(name, 2, tmp_path / "life")
    before, often = saved(life, name, tmp_path), ("run.checkpoint_seconds=0",)
    folder, stops = tmp_path / "straight", list[Path]()
    folder.mkdir()

    def keep(record: dict[str, Any]) -> None:
        """A copy of the folder, as a stop at this moment leaves it."""
        if record["event"] == "epoch":
            stops.append(shutil.copytree(folder, tmp_path / f"stopped-{len(stops)}"))

    straight = learned(before, life, folder, changes=often, show=keep)
    stopped = tmp_path / "stopped"
    stopped.mkdir()
    with pytest.raises(StoppedError):
        learned(before, life, stopped, changes=often, show=stop_after(len(stops)))
    assert sorted(path.name for path in stopped.iterdir()) == sorted(path.name for path in stops[-1].iterdir())
    assert (stopped / FILE).read_bytes() == (stops[-1] / FILE).read_bytes()
    assert len(stops) > 1
    # each goes on to what lies there at the next stop, and the last to the end: so all of them go on to the end
    left = [(folder / FILE).read_bytes() if (folder / FILE).exists() else b"" for folder in stops]
    for folder, following in zip(stops[:-1], left[1:], strict=True):
        with pytest.raises(StoppedError):  # after the epoch that was not saved, and the next one
            learned(before, life, folder, changes=often, show=stop_after(2))
        assert (folder / FILE).read_bytes() == following
    again = learned(before, life, stops[-1], changes=often)
    assert differing(all_of(again), all_of(straight)) == []
    assert again.exemplars.provenance == straight.exemplars.provenance


def test_a_finished_step_is_not_trained_again(lives: Lives, tmp_path: Path) -> None:
    life = lives.after("icarl", 2, tmp_path / "life")
    before = saved(life, "icarl", tmp_path)
    first, shown = learned(before, life, tmp_path / "work"), list[dict[str, Any]]()
    second = learned(before, life, tmp_path / "work", show=shown.append)
    assert [record["event"] for record in shown] == ["plan"]
    assert differing(all_of(first), all_of(second)) == []


def test_exemplars_keep_their_terms_and_new_ones_get_theirs(lives: Lives, tmp_path: Path) -> None:
    life = lives.after("icarl", 2, tmp_path / "life")
    content = content_of(life, "icarl", 2)
    origins = tuple(replace(origin, licence="old", consent="given") for origin in content.exemplars.provenance)
    before = replace(content, exemplars=replace(content.exemplars, provenance=origins))
    after = learned(before, life, tmp_path / "work", terms=Terms(licence="new", consent="asked"))
    told = {(origin.task < 2, origin.licence, origin.consent) for origin in after.exemplars.provenance}
    assert told == {(True, "old", "given"), (False, "new", "asked")}


def test_a_class_without_exemplars_needs_new_images_of_it(images: Images, lives: Lives, tmp_path: Path) -> None:
    life = lives.after("endocil", 2, tmp_path / "life")
    content = content_of(life, "endocil", 2)
    origins = content.exemplars.provenance
    rest = [row for row, origin in enumerate(origins) if origin.class_name != "class-00"]
    emptied = replace(content, exemplars=content.exemplars.take(rest))
    model = Model.from_file(emptied)
    (problem,) = model.problems(next_step(model, life))
    assert "holds no exemplars of class-00 any more; add images of it" in problem
    own = tuple(life.scenario.rows("train", slice(0, 1)).tolist())
    after = learned(emptied, life, tmp_path / "work", own)
    assert sum(origin.class_name == "class-00" for origin in after.exemplars.provenance) == QUOTA
