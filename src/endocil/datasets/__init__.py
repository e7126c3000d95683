"""Data sets by name: each is a function of its options to an ImageTable."""

from collections.abc import Callable, Mapping
from typing import Any

from endocil.datasets import folder, synthetic
from endocil.images.table import ImageTable
from endocil.registry import check_options, resolve

__all__ = ["DATASETS", "load_table"]

DATASETS: dict[str, Callable[..., ImageTable]] = {
    "folder": folder.load,
    "synthetic": synthetic.load,
}


def load_table(name: str, options: Mapping[str, Any]) -> ImageTable:
    loader = resolve("data.name", name, DATASETS)
    check_options("data", loader, options)
    return loader(**options)
