"""Fixtures that every room's tests share."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from life import Lives
from made_runs import metrics_of, settings_of, write_run
from pictures import make_images
from tiny_runs import tiny

from endocil.data.cache import Images
from endocil.model.file import ModelFile, read_model_file
from endocil.model.kept_images import pack
from endocil.model.manifest import Terms
from endocil.model.model import Model
from endocil.reports.comparisons import results_of
from endocil.runs.records import read_run
from endocil.runs.run import run
from endocil.runs.sweep.executors import Job


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
def tiny_model(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its model, with exemplars, held-out images and calibration; read only."""
    path = tmp_path_factory.mktemp("model") / "model.endocil"
    model = Model.load(tiny_run)
    terms = Terms(licence="CC BY 4.0", consent="given")
    pack(model, metrics=results_of(read_run(tiny_run)), terms=terms)
    model.save(path)
    return path


@pytest.fixture
def tiny_content(tiny_model: Path) -> ModelFile:
    return read_model_file(tiny_model)


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """make_run("endocil", seed=1, memory__select="mean") -> the folder of such a run."""
    made = 0

    def make(method: str, seed: int = 0, *, metrics: Mapping[str, Any] | None = None, **changes: Any) -> Path:
        nonlocal made
        made += 1
        folder = tmp_path / "runs" / f"{made:02}-{method.rpartition(':')[2]}"
        return write_run(folder, settings_of(method, seed, **changes), metrics)

    return make


@pytest.fixture
def make_settings() -> Callable[..., dict[str, Any]]:
    return settings_of


@pytest.fixture
def make_metrics() -> Callable[..., dict[str, Any]]:
    return metrics_of


@pytest.fixture
def _runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of a sweep in this process, one after another: for tests of what becomes of their results."""
    alone = threading.Lock()

    def attempt(job: Job, number: int, stopped: Callable[[], bool]) -> int:
        with alone:
            run(job.settings, job.folder)
        return 0

    monkeypatch.setattr("endocil.runs.sweep.executors._attempt", attempt)
