"""What a method keeps with each exemplar is part of checkpoint and model file."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from life import Lives
from lives import content_of

from endocil.errors import FileFormatError
from endocil.learning.checkpoint import load_checkpoint
from endocil.model.file import read_model_file, write_model_file


def test_tensors_of_exemplars_survive_checkpoint_and_model_file(lives: Lives, tmp_path: Path) -> None:
    life = lives.after("derpp", 2, tmp_path)
    kept = life.memory.exemplars.tensors
    assert kept["logits"].shape == (len(life.memory), 3)
    assert set(kept["known"].tolist()) == {2, 3}
    assert not kept["logits"][kept["known"] == 2, 2].any()
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.exemplars is not None
    assert torch.equal(checkpoint.exemplars.tensors["logits"], kept["logits"])
    content = content_of(life, "derpp", 2)
    write_model_file(tmp_path / "model.endocil", content)
    read = read_model_file(tmp_path / "model.endocil").exemplars
    assert {name: value.tolist() for name, value in read.tensors.items()} == {
        name: value.tolist() for name, value in kept.items()
    }
    short = replace(content, exemplars=replace(content.exemplars, tensors={"logits": kept["logits"][1:]}))
    with pytest.raises(FileFormatError, match=r"'logits' of shape \(\d+, 3\) is not kept with \d+ exemplars"):
        write_model_file(tmp_path / "short.endocil", short)
    without = content.exemplars.take([0, 2])
    assert torch.equal(without.tensors["logits"], kept["logits"][[0, 2]])
