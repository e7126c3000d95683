"""Data sets by name: each is a function of its options to an ImageTable."""

from collections.abc import Callable, Mapping
from typing import Any

from endocil.datasets import (
    capsule_vision,
    dicom,
    folder,
    gastrovision,
    hyper_kvasir,
    kvasir_capsule,
    synthetic,
    table_file,
)
from endocil.images.table import ImageTable
from endocil.registry import check_options, resolve

__all__ = ["DATASETS", "load_table"]

DATASETS: dict[str, Callable[..., ImageTable]] = {
    "capsule-vision": capsule_vision.load,
    "csv": table_file.load,
    "dicom": dicom.load,
    "folder": folder.load,
    "gastrovision": gastrovision.load,
    "hyper-kvasir": hyper_kvasir.load,
    "kvasir-capsule": kvasir_capsule.load,
    "synthetic": synthetic.load,
}


def load_table(name: str, options: Mapping[str, Any]) -> ImageTable:
    loader = resolve("data.name", name, DATASETS)
    check_options("data", loader, options)
    return loader(**options)
