"""From what lies in a bundle to the method that learned it."""

import torch

from endocil.assembly import build_learning, complete
from endocil.bundle.content import Content
from endocil.checkpoint import grow
from endocil.errors import EndocilError
from endocil.methods import Method
from endocil.settings import Settings


def restored(content: Content, device: torch.device | None = None, *, trust: bool = False) -> Method:
    """The method as it was after its last task, in eval mode.

    `trust`: a bundle may name methods, backbones or selectors of other packages, whose code runs when they are
    imported; without it such a bundle is refused."""
    settings = settings_of(content, trust=trust)
    method, _ = build_learning(settings)
    method.to(device or torch.device("cpu"), memory_format=torch.channels_last)  # type: ignore[call-overload]
    for task in content.tasks:
        grow(method, task, device or torch.device("cpu"))
    try:
        method.load_state_dict(dict(content.state))
    except RuntimeError as error:
        first = " ".join(str(error).split())[:200]
        raise EndocilError(f"the bundle's weights do not fit its settings: {first}") from error
    method.statistics = dict(content.statistics)
    return method.eval()


def settings_of(content: Content, *, trust: bool = False) -> Settings:
    """The settings, as far as they run no code from outside the package."""
    settings = content.settings
    names = {
        "method.name": settings.method.name,
        "network.backbone": settings.network.backbone,
        "memory.select": settings.memory.select or "",
    }
    for key, name in names.items():
        if ":" in name and not trust:
            raise EndocilError(
                f"the bundle's {key} is '{name[:100]}', code from outside the package; it is run only with --trust"
            )
    return complete(settings)
