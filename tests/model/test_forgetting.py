"""A patient's pictures are out of the new model, what can be measured without them is, and the rest is told."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import endocil
from packed import restored
from PIL import Image

from endocil import EndocilError
from endocil.learning.features import CLASS_MEANS, class_means, outputs_of
from endocil.learning.memory import KeptImages, Provenance
from endocil.model.file import ModelFile, read_model_file, write_model_file
from endocil.model.kept_images import forget, write_sheet


def origins(content: ModelFile) -> tuple[Provenance, ...]:
    return (*content.exemplars.provenance, *content.held_out.provenance)


def spared(content: ModelFile) -> str:
    """A group whose exemplars are never all of their class."""
    for group in sorted({origin.group for origin in content.exemplars.provenance}):
        left = {origin.class_name for origin in content.exemplars.provenance if origin.group != group}
        if left == set(content.classes):
            return group
    raise AssertionError("every group is all that a class has")


def test_a_group_is_gone_and_class_means_are_those_of_the_rest(tiny_content: ModelFile) -> None:
    group = spared(tiny_content)
    found = forget(tiny_content, groups=[group])
    assert group not in {origin.group for origin in origins(found.content)}
    gone = [origin for origin in tiny_content.exemplars.provenance if origin.group == group]
    assert (found.exemplars, len(found.content.exemplars)) == (len(gone), len(tiny_content.exemplars) - len(gone))
    method = restored(found.content)
    labels = torch.tensor(
        [found.content.classes.index(origin.class_name) for origin in found.content.exemplars.provenance]
    )
    features = outputs_of(method, found.content.exemplars.pixels).features
    expected = class_means(features, labels, len(found.content.classes))
    means, before = found.content.statistics[CLASS_MEANS], tiny_content.statistics[CLASS_MEANS]
    torch.testing.assert_close(means, expected, rtol=1e-4, atol=1e-4)
    touched = {origin.class_name for origin in gone}
    for label, name in enumerate(found.content.classes):
        assert torch.equal(means[label], before[label]) == (name not in touched)
    assert all(torch.equal(found.content.state[name], value) for name, value in tiny_content.state.items())


def test_the_order_of_choice_stays_without_gaps(tiny_content: ModelFile) -> None:
    first = tiny_content.exemplars.provenance[0]
    left = forget(tiny_content, images=[first.image]).content.exemplars.provenance
    for name in tiny_content.classes:
        mine = [origin for origin in left if origin.class_name == name]
        assert [origin.order for origin in mine] == list(range(len(mine)))
    before = [origin.image for origin in tiny_content.exemplars.provenance]
    assert [origin.image for origin in left] == before[1:]


def test_history_tells_how_many_but_not_whose(tiny_content: ModelFile) -> None:
    group = spared(tiny_content)
    content = forget(tiny_content, groups=[group]).content
    version = content.manifest.history[-1]
    n = sum(origin.group == group for origin in origins(tiny_content))
    assert (version.by, version.parent, version.removed) == ("forget", tiny_content.digest, {"group": n})
    assert group not in content.manifest.model_dump_json()
    assert content.manifest.metrics is None


def test_it_says_what_still_saw_them(tiny_content: ModelFile) -> None:
    exemplar = forget(tiny_content, images=[tiny_content.exemplars.provenance[0].image])
    assert any(line.startswith("the weights have learned from them") for line in exemplar.lines)
    assert any("class means" in line for line in exemplar.lines)
    held = forget(tiny_content, images=[tiny_content.held_out.provenance[0].image])
    assert (held.exemplars, held.held_out) == (0, 1)
    assert "held-out images were never learned from: nothing else was computed from them" in held.lines
    assert held.content.manifest.metrics == tiny_content.manifest.metrics
    assert held.content.manifest.calibration is not None
    assert held.content.manifest.calibration.images == len(tiny_content.held_out) - 1
    assert held.content.statistics[CLASS_MEANS].equal(tiny_content.statistics[CLASS_MEANS])


def test_images_that_were_learned_and_not_kept_are_not_denied(tiny_content: ModelFile) -> None:
    first, *rest = tiny_content.held_out.provenance
    alone = replace(
        tiny_content, held_out=replace(tiny_content.held_out, provenance=(replace(first, group="only here"), *rest))
    )
    unkept = (
        "Images that were learned but not kept cannot be identified: the weights may have learned from some of them"
    )
    found = forget(alone, groups=["only here"])
    assert (found.exemplars, found.held_out) == (0, 1)
    assert f"held-out images were never learned from. {unkept}" in found.lines
    assert not any("nothing else was computed from them" in line for line in found.lines)
    for kind in ("groups", "sources"):
        chosen: dict[str, Any] = {kind: ["zzzz"]}
        with pytest.raises(EndocilError, match=re.escape(unkept)):
            forget(alone, **chosen)


def test_a_class_left_without_held_out_images_ends_the_calibration(tiny_content: ModelFile) -> None:
    name = tiny_content.classes[0]
    mine = [origin.image for origin in tiny_content.held_out.provenance if origin.class_name == name]
    found = forget(tiny_content, images=mine)
    assert found.content.manifest.calibration is None
    assert f"the calibration was removed: no held-out images of {name} are left" in found.lines


def test_a_sheet_of_a_class_has_its_own_pictures_alone(tiny_content: ModelFile, tmp_path: Path) -> None:
    old, new = tiny_content.classes[:2]
    names = {old: "a", new: "a: b"}

    def renamed(pictures: KeptImages) -> KeptImages:
        origins = (
            replace(origin, class_name=names.get(origin.class_name, origin.class_name))
            for origin in pictures.provenance
        )
        return KeptImages(pictures.pixels, tuple(origins))

    classes = tuple(
        learned.model_copy(update={"name": names.get(learned.name, learned.name)})
        for learned in tiny_content.manifest.classes
    )
    content = replace(
        tiny_content,
        manifest=tiny_content.manifest.model_copy(update={"classes": classes}),
        exemplars=renamed(tiny_content.exemplars),
        held_out=renamed(tiny_content.held_out),
    )
    before = [Image.open(file).size for file in write_sheet(tmp_path / "before", tiny_content)]
    after = [Image.open(file).size for file in write_sheet(tmp_path / "after", content)]
    assert after == before


def test_without_held_out_images_the_calibration_goes(tiny_content: ModelFile) -> None:
    found = forget(tiny_content, images=[origin.image for origin in tiny_content.held_out.provenance])
    assert found.content.manifest.calibration is None
    assert any("calibration was removed" in line for line in found.lines)


def test_a_class_without_exemplars_is_refused_unless_it_is_meant(tiny_content: ModelFile) -> None:
    name = tiny_content.classes[0]
    mine = [origin.image for origin in tiny_content.exemplars.provenance if origin.class_name == name]
    with pytest.raises(EndocilError, match=f"no exemplar would be left of {name}.*--allow-empty"):
        forget(tiny_content, images=mine)
    found = forget(tiny_content, images=mine, allow_empty=True)
    assert any(line.endswith(f"the class means of {name}") for line in found.lines)
    assert found.content.statistics[CLASS_MEANS].equal(tiny_content.statistics[CLASS_MEANS])


def test_even_the_last_exemplar_can_go(tiny_content: ModelFile) -> None:
    every = [origin.image for origin in tiny_content.exemplars.provenance]
    found = forget(tiny_content, images=every, allow_empty=True)
    assert len(found.content.exemplars) == 0
    assert found.content.statistics[CLASS_MEANS].equal(tiny_content.statistics[CLASS_MEANS])


def test_what_matches_nothing_is_refused_with_what_is_near(tiny_content: ModelFile) -> None:
    group = origins(tiny_content)[0].group
    with pytest.raises(EndocilError, match=re.escape(f"similar: {group}")):
        forget(tiny_content, groups=[f"{group}x"])
    with pytest.raises(EndocilError, match="no image of the model has the source 'zzzz'"):
        forget(tiny_content, sources=["zzzz"])
    with pytest.raises(EndocilError, match="nothing to forget was named"):
        forget(tiny_content)


def test_the_commands_list_draw_and_forget(tiny_model: Path, tmp_path: Path) -> None:
    content, before = read_model_file(tiny_model), tiny_model.read_bytes()
    shown = endocil("memory", tiny_model, "--csv", tmp_path / "m.csv", "--sheet", tmp_path / "m.png", "--list")
    assert shown.returncode == 0, shown.stderr
    total = len(content.exemplars) + len(content.held_out)
    assert len((tmp_path / "m.csv").read_text().splitlines()) == 1 + total
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")
    assert f"by licence: CC BY 4.0 {total}" in shown.stdout
    assert all(origin.image in shown.stdout for origin in origins(content))
    assert endocil("memory", tiny_model, "--sheet", tmp_path / "sheets").returncode == 0
    assert len(list((tmp_path / "sheets").glob("*.png"))) == len(content.classes)
    group = spared(content)
    done = endocil("forget", tiny_model, "--group", group, "-o", tmp_path / "less.endocil")
    assert done.returncode == 0, done.stderr
    assert "the weights have learned from them" in done.stdout
    assert group not in {origin.group for origin in origins(read_model_file(tmp_path / "less.endocil"))}
    assert group.encode() not in (tmp_path / "less.endocil").read_bytes()
    assert tiny_model.read_bytes() == before
    again = endocil("forget", tiny_model, "--group", group, "-o", tmp_path / "less.endocil")
    assert again.returncode == 1
    assert "exists already" in again.stderr


def test_a_model_without_pictures_has_nothing_to_show_or_forget(tiny_content: ModelFile, tmp_path: Path) -> None:
    none = tiny_content.exemplars.take([])
    empty = replace(tiny_content, exemplars=none, held_out=none)
    write_model_file(tmp_path / "empty.endocil", empty)
    result = endocil("memory", tmp_path / "empty.endocil", "--sheet", tmp_path / "m.png")
    assert result.returncode == 1
    assert "0 exemplars and 0 held-out images" in result.stdout
    assert "the model holds no images" in result.stderr
    with pytest.raises(EndocilError, match="has the group 'p'"):
        forget(empty, groups=["p"])
