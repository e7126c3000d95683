"""Addresses for `--ray` that Ray itself would wait for."""

import pytest

from endocil import EndocilError
from endocil.runs.sweep.executors import _check_address


@pytest.mark.parametrize("address", ["ray://", "ray://:10001", ":6379"])
def test_an_address_without_a_machine_is_refused(address: str) -> None:
    with pytest.raises(EndocilError, match=f"--ray {address}: the address names no machine; give HOST:PORT"):
        _check_address(address)


@pytest.mark.parametrize("word", ["auto", "local"])
def test_a_word_is_left_to_ray(word: str) -> None:
    _check_address(word)
