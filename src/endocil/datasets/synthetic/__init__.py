"""Synthetic endoscopy: drawn by a program, the same for the same (seed, class, index), with no patient behind it."""

from endocil.datasets.synthetic.devices import DEVICES
from endocil.datasets.synthetic.loader import SyntheticReader, load, write_folder
from endocil.datasets.synthetic.renderer import CLASSES, RENDERER_VERSION, contact_sheet, render

__all__ = [
    "CLASSES",
    "DEVICES",
    "RENDERER_VERSION",
    "SyntheticReader",
    "contact_sheet",
    "load",
    "render",
    "write_folder",
]
