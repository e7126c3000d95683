"""Fixtures that every room's tests share."""

from collections.abc import Iterator

import pytest
import torch
from pictures import make_images

from endocil.images.cache import Images


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or fills the user's cache; the tests of one process share one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENDOCIL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def images() -> Images:
    """Six classes of uneven size, one of them smaller than the usual quota of the tests."""
    return make_images([14, 11, 12, 4, 13, 9])
