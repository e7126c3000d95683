"""Model files from runs and back, as the commands make them."""

from pathlib import Path

import torch

from endocil.methods import Method
from endocil.model.file import ModelFile
from endocil.model.kept_images import pack
from endocil.model.manifest import Terms
from endocil.model.model import Model
from endocil.model.restore import model_settings, restored_method
from endocil.reports.comparisons import results_of
from endocil.runs.records import read_run


def restored(file: ModelFile, *, trust: bool = False) -> Method:
    return restored_method(file, model_settings(file, trust=trust), torch.device("cpu"))


def packed(
    run: Path, *, held_out: int | None = None, with_exemplars: bool = True, licence: str = "", consent: str = ""
) -> Model:
    """A run's model as `endocil bundle` packs it."""
    model = Model.load(run)
    terms = Terms(licence=licence, consent=consent)
    pack(model, metrics=results_of(read_run(run)), terms=terms, held_out=held_out, with_exemplars=with_exemplars)
    return model
