"""Data sets by name: each is a function from its options to an ImageTable."""

from collections.abc import Callable, Mapping
from typing import Any

from endocil.data.cache import Progress
from endocil.data.table import ImageTable
from endocil.datasets import csv as table_file
from endocil.datasets import dicom, folder, synthetic
from endocil.datasets.public import capsule_vision, cifar100
from endocil.datasets.public.class_folders import gastrovision, hyper_kvasir, kvasir_capsule
from endocil.registry import check_options, options_of, resolve

__all__ = ["DATASETS", "RESERVED", "load_table"]

RESERVED = ("progress",)  # keywords of a loader that are not options of [data]

DATASETS: dict[str, Callable[..., ImageTable]] = {
    "capsule-vision": capsule_vision.load,
    "cifar100": cifar100.load,
    "csv": table_file.load,
    "dicom": dicom.load,
    "folder": folder.load,
    "gastrovision": gastrovision,
    "hyper-kvasir": hyper_kvasir,
    "kvasir-capsule": kvasir_capsule,
    "synthetic": synthetic.load,
}


def load_table(name: str, options: Mapping[str, Any], progress: Progress | None = None) -> ImageTable:
    """The table of a data set; a slow loader (one that extracts an archive) takes `progress`."""
    loader = resolve("data.name", name, DATASETS)
    check_options("data", loader, options, reserved=RESERVED)
    reporting = {"progress": progress} if "progress" in options_of(loader) else {}
    return loader(**options, **reporting)
