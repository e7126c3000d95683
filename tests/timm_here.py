"""timm for tests: beside torch's build for the CPU, torchvision's build for CUDA lacks two operators at import."""

from typing import Any

import pytest
import torch

_LIBRARY: list[Any] = []  # an operator lives as long as its library


def timm_or_skip() -> Any:
    """The package timm, or the test is skipped."""
    try:
        import torchvision  # noqa: F401
    except ImportError as error:
        pytest.skip(f"timm needs {error.name}")
    except RuntimeError:
        if not _LIBRARY:
            library = torch.library.Library("torchvision", "DEF")
            for name in ("nms", "qnms"):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _LIBRARY.append(library)
    return pytest.importorskip("timm")
