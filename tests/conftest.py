"""Fixtures that every room's tests share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from life import Lives
from pictures import make_images
from tiny_runs import tiny

from endocil.data.cache import Images
from endocil.model.file import ModelFile, read_model_file
from endocil.model.manifest import Terms
from endocil.model.model import Model
from endocil.reports.model_results import results_of
from endocil.runs.records import read_run
from endocil.runs.run import run


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or fills the user's cache; the tests of one process share one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENDOCIL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(autouse=True)
def _threads() -> None:
    """One, unless `make test-processors` asks for more."""
    torch.set_num_threads(int(os.environ.get("ENDOCIL_TEST_THREADS", "1")))


SIZES = [14, 11, 12, 4, 13, 9]


@pytest.fixture
def images() -> Images:
    """Six classes of uneven size, one of them smaller than the usual quota of the tests."""
    return make_images(SIZES)


@pytest.fixture(scope="session")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Lives:
    """The life of each method on these images."""
    return Lives(make_images(SIZES), tmp_path_factory.mktemp("lives"))


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run; read only."""
    folder = tmp_path_factory.mktemp("tiny") / "run"
    run(tiny(), folder)
    return folder


@pytest.fixture(scope="session")
def tiny_bundle(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its bundle, with exemplars, held-out images and calibration; read only."""
    path = tmp_path_factory.mktemp("bundle") / "model.endocil"
    model = Model.load(tiny_run)
    terms = Terms(licence="CC BY 4.0", consent="given")
    model.pack(metrics=results_of(read_run(tiny_run)), terms=terms)
    model.save(path)
    return path


@pytest.fixture
def tiny_content(tiny_bundle: Path) -> ModelFile:
    return read_model_file(tiny_bundle)
