"""Figures of runs as PNG and PDF: those of the paper, and others. One module for each kind."""

from importlib.util import find_spec

from endocil.errors import EndocilError

if find_spec("matplotlib") is None:
    raise EndocilError("figures need matplotlib; install it by: pip install 'endocil[report]'")
