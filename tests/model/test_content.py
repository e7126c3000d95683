"""What lies in a model: it comes back as it went in, and what does not fit together is refused in one line."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hostile import MANIFEST, WEIGHTS, changed, filled_with, in_header, in_manifest, members_of, signed

from endocil.errors import EndocilError
from endocil.learning.memory import KeptImages
from endocil.model.file import ModelFile, read_model_file, write_model_file
from endocil.model.manifest import Manifest


@pytest.fixture
def rewritten(tiny_model: Path, tmp_path: Path) -> Callable[[str, Callable[[bytes], bytes]], Path]:
    """The model with one member changed, under the right digest."""

    def rewrite(member: str, change: Callable[[bytes], bytes]) -> Path:
        path = tmp_path / "changed.endocil"
        path.write_bytes(signed(changed(members_of(tiny_model.read_bytes()), member, change)))
        return path

    return rewrite


def test_content_comes_back_bit_for_bit(tiny_content: ModelFile, tiny_model: Path, tmp_path: Path) -> None:
    digest = write_model_file(tmp_path / "again.endocil", tiny_content)
    assert digest == tiny_content.digest
    assert (tmp_path / "again.endocil").read_bytes() == tiny_model.read_bytes()
    again = read_model_file(tmp_path / "again.endocil")
    assert again.manifest == tiny_content.manifest
    assert all(torch.equal(again.state[name], value) for name, value in tiny_content.state.items())
    assert torch.equal(again.exemplars.pixels, tiny_content.exemplars.pixels)
    assert again.held_out.provenance == tiny_content.held_out.provenance


def test_names_that_are_no_valid_text_come_back_too(tiny_content: ModelFile, tmp_path: Path) -> None:
    odd = "polyp\udcff"
    said = tiny_content.manifest.model_dump()
    old = said["classes"][3]["name"]
    said["classes"][3]["name"] = odd

    def renamed(pictures: KeptImages) -> KeptImages:
        origins = [
            replace(one, class_name=odd if one.class_name == old else one.class_name) for one in pictures.provenance
        ]
        return replace(pictures, provenance=tuple(origins))

    content = replace(
        tiny_content,
        manifest=Manifest.model_validate(said),
        exemplars=renamed(tiny_content.exemplars),
        held_out=renamed(tiny_content.held_out),
    )
    write_model_file(tmp_path / "odd.endocil", content)
    assert read_model_file(tmp_path / "odd.endocil").classes[3] == odd


def test_tasks_own_the_classes_in_their_order(tiny_content: ModelFile) -> None:
    assert [(task.index, task.n_old, task.n_new) for task in tiny_content.tasks] == [(0, 0, 2), (1, 2, 2), (2, 4, 1)]


@pytest.mark.parametrize("number", [1, 2])
def test_a_file_of_version_0_1_is_refused_with_the_way_out(rewritten: Callable[..., Path], number: int) -> None:
    with pytest.raises(EndocilError, match=rf"has format {number}; .* reads 3: make it again from its run"):
        read_model_file(rewritten(MANIFEST, in_manifest("format", to=number)))


def test_a_newer_format_says_to_update(rewritten: Callable[..., Path]) -> None:
    with pytest.raises(EndocilError, match="has format 7; this version of endocil reads 3: update endocil"):
        read_model_file(rewritten(MANIFEST, in_manifest("format", to=7)))


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        (("classes", 0, "name"), "", "classes.0.name"),
        (("classes", 0, "task"), 1, "order of their tasks"),
        (("increments",), [2, 2], "5 classes, but tasks of"),
        (("preprocessing", "crop_frame"), True, "different sizes, frames or ways to fit"),
        (("preprocessing", "mean"), [0.5, 0.5], "preprocessing.mean"),
        (("calibration", "temperature"), -1, "calibration.temperature"),
        (("settings", "train", "epochs"), 0, "train.epochs"),
        (("settings", "trains"), {}, "unknown settings key"),
        (("history", 0, "parent"), "abc", "history.0.parent"),
        (("nothing",), 1, "nothing"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused_by_the_place(
    rewritten: Callable[..., Path], keys: tuple[object, ...], value: object, reason: str
) -> None:
    with pytest.raises(EndocilError, match=reason) as refused:
        read_model_file(rewritten(MANIFEST, in_manifest(*keys, to=value)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers_are_refused_by_name(rewritten: Callable[..., Path], value: float) -> None:
    with pytest.raises(EndocilError, match=r"not finite in '.*conv1"):
        read_model_file(rewritten(WEIGHTS, filled_with(value, "conv1")))


def test_numbers_whose_sum_overflows_are_finite(tiny_content: ModelFile, tmp_path: Path) -> None:
    largest = torch.full((3,), torch.finfo(torch.float32).max)
    written = replace(tiny_content, statistics={**tiny_content.statistics, "largest": largest})
    write_model_file(tmp_path / "a.endocil", written)
    assert torch.equal(read_model_file(tmp_path / "a.endocil").statistics["largest"], largest)


def test_statistics_that_share_memory_are_written_apart(tiny_content: ModelFile, tmp_path: Path) -> None:
    """`Model.save` does not copy them first, and safetensors refuses tensors that share memory."""
    whole = torch.arange(4.0)
    shared = {"one": whole, "same": whole, "part": whole[1:], "empty": whole[:0]}
    write_model_file(tmp_path / "a.endocil", replace(tiny_content, statistics={**tiny_content.statistics, **shared}))
    found = read_model_file(tmp_path / "a.endocil").statistics
    assert all(torch.equal(found[name], values) for name, values in shared.items())


def test_tensors_of_no_part_are_refused(rewritten: Callable[..., Path]) -> None:
    def add(header: dict[str, object]) -> None:
        header["code"] = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}

    with pytest.raises(EndocilError, match="holds 'code', which no model has"):
        read_model_file(rewritten(WEIGHTS, in_header(add)))


def test_pictures_of_unknown_classes_are_refused(rewritten: Callable[..., Path]) -> None:
    with pytest.raises(EndocilError, match="which is none of the 5 classes"):
        read_model_file(rewritten("held-out.csv", lambda old: old.replace(b",polyp,", b",other,")))


ESCAPE = "\x1b[31m"


@pytest.mark.parametrize(
    ("keys", "value", "place"),
    [
        (("name",), f"model{ESCAPE}", "manifest.json.name has the character U+001B"),
        (("classes", 0, "name"), "a\nb", "manifest.json.classes.0.name has the character U+000A"),
        (("terms", "consent"), "a\u2028b", "manifest.json.terms.consent has the character U+2028"),
        (("history", 0, "added"), {"\x9b": 1}, "manifest.json.history.0.added: a name has the character U+009B"),
        (("history", 0, "note"), "\x7f", "manifest.json.history.0.note has the character U+007F"),
        (("settings", "method", "name"), "ic\rarl", "manifest.json.settings.method.name has the character U+000D"),
        (("environment", "system"), ["\0"], "manifest.json.environment.system.0 has the character U+0000"),
    ],
)
def test_control_characters_in_the_manifest_are_refused_by_the_place(
    rewritten: Callable[..., Path], keys: tuple[str | int, ...], value: object, place: str
) -> None:
    with pytest.raises(EndocilError, match=re.escape(place)) as refused:
        read_model_file(rewritten(MANIFEST, in_manifest(*keys, to=value)))
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("kind", ["exemplars", "held-out"])
def test_control_characters_beside_a_picture_are_refused(rewritten: Callable[..., Path], kind: str) -> None:
    path = rewritten(f"{kind}.csv", lambda table: table.replace(b",given\n", b",given\x1b[2J\n", 1))
    with pytest.raises(EndocilError, match=rf"{kind}\.csv, consent has the character U\+001B") as refused:
        read_model_file(path)
    assert str(refused.value).isprintable()


def test_what_says_that_it_holds_no_pictures_must_hold_none(rewritten: Callable[..., Path]) -> None:
    with pytest.raises(EndocilError, match="says that no image is inside, but holds some"):
        read_model_file(rewritten(MANIFEST, in_manifest("keeps_images", to=False)))


def test_control_characters_are_not_written_either(tiny_content: ModelFile, tmp_path: Path) -> None:
    kept = tiny_content.exemplars
    first = replace(kept.provenance[0], group="p\n1")
    odd = replace(tiny_content, exemplars=replace(kept, provenance=(first, *kept.provenance[1:])))
    with pytest.raises(EndocilError, match=r"exemplars\.csv, group has the character U\+000A"):
        write_model_file(tmp_path / "model.endocil", odd)
    named = replace(tiny_content, statistics={**tiny_content.statistics, f"x{ESCAPE}": torch.zeros(1)})
    with pytest.raises(EndocilError, match="the name of a statistic has the character"):
        write_model_file(tmp_path / "model.endocil", named)
    assert not list(tmp_path.iterdir())


def test_content_that_could_not_be_read_again_is_not_written(tiny_content: ModelFile, tmp_path: Path) -> None:
    broken = {**tiny_content.state, "backbone.conv1.weight": torch.full((8, 3, 7, 7), torch.nan)}
    with pytest.raises(EndocilError, match="not finite"):
        write_model_file(tmp_path / "new.endocil", replace(tiny_content, state=broken))
    assert list(tmp_path.iterdir()) == []


def test_the_manifest_is_readable_json(tiny_model: Path) -> None:
    said = json.loads(dict(members_of(tiny_model.read_bytes()))[MANIFEST])
    assert said["format"] == 3
    assert said["terms"] == {"licence": "CC BY 4.0", "consent": "given"}
    assert said["history"][0]["by"] == "run"
