"""A tiny finished run and its bundle, made once for all tests of this room."""

from pathlib import Path

import pytest
from tiny_runs import tiny

from endocil.bundle.content import Content, read_content, write_content
from endocil.bundle.making import make_bundle
from endocil.experiment import run


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
    write_content(path, make_bundle(tiny_run, licence="CC BY 4.0", consent="given").content)
    return path


@pytest.fixture
def tiny_content(tiny_bundle: Path) -> Content:
    return read_content(tiny_bundle)
