"""Any model of timm as a backbone: `network.backbone = "timm:NAME"` (extra `timm`).

Features are what the model's own classifier would get. Normalisation and input size come from its configuration; a
model of a fixed size is built for that of the images where timm can do so (ViTs, among them DINOv2).
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from endocil.errors import DataError, ResourceError, SettingsError

LARGEST = 20_000  # of all whole numbers in network.arguments together: a model file may ask for anything
LOADING = ("pretrained", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "num_classes")


class TimmBackbone(nn.Module):
    """Images (B, 3, H, W) to features (B, n_features), without the model's classifier."""

    def __init__(
        self,
        name: str,
        *,
        size: int | None = None,
        pretrained: bool = False,
        arguments: dict[str, Any] = {},  # noqa: B006 - never changed; of the model's constructor, beside its size
    ) -> None:
        super().__init__()
        timm = _timm()
        # other forms of names would load files or code: hf-hub:, local-dir:
        if not timm.is_model(name):
            near = ", ".join(timm.list_models(f"*{name[:4]}*")[:5]) or ", ".join(timm.list_models("resnet*")[:5])
            raise SettingsError(f"network.backbone 'timm:{name}' is not a model of timm {timm.__version__}; try {near}")
        for key in arguments:
            if key in LOADING:
                raise SettingsError(
                    f"network.arguments.{key} is not taken: network.weights says where weights are from"
                )
        if _sum(arguments) > LARGEST:
            raise SettingsError(f"network.arguments add up to {_sum(arguments):,}; at most {LARGEST:,} are accepted")
        self.name, self.version = name, timm.__version__
        configuration = timm.get_pretrained_cfg(name)
        wanted = int(configuration.input_size[-1]) if configuration else size
        fixed = bool(configuration and configuration.fixed_input_size)
        resized = {"img_size": size} if fixed and size not in (None, wanted) else {}
        try:
            self.model = timm.create_model(name, pretrained=pretrained, num_classes=0, **{**resized, **arguments})
        except (TypeError, AssertionError) as error:
            made_for = f"; it was made for images of {wanted} x {wanted}, and data.size is {size}" if resized else ""
            raise SettingsError(f"network.backbone 'timm:{name}' cannot be built: {_line(error)}{made_for}") from error
        except (OSError, RuntimeError) as error:
            if not pretrained:
                raise
            raise DataError(
                f"timm cannot get the weights of {name}: {_line(error)}; fetch the file where "
                f"there is a network and set network.weights to it (docs/backbones.md)"
            ) from error
        self.n_features = int(getattr(self.model, "head_hidden_size", None) or self.model.num_features)
        own = self.model.pretrained_cfg
        self.mean, self.std = tuple(own["mean"]), tuple(own["std"])
        if size not in (None, wanted) and not any(parameter.is_meta for parameter in self.model.parameters()):
            self._try_size(int(size or 0), wanted)

    def _try_size(self, size: int, wanted: int | None) -> None:
        """One black image shows whether the model can take images of another size than its own."""
        patch = next((part.patch_size for part in self.model.children() if hasattr(part, "patch_size")), None)
        if isinstance(patch, tuple) and size % patch[0]:
            raise SettingsError(
                f"network.backbone 'timm:{self.name}' cuts images into patches of {patch[0]} pixels, and data.size is "
                f"{size}; set a multiple, such as {max(1, round(size / patch[0])) * patch[0]}"
            )
        training = self.training
        self.eval()
        try:
            with torch.no_grad():
                self(torch.zeros(1, 3, size, size))
        except (AssertionError, RuntimeError) as error:
            raise SettingsError(
                f"network.backbone 'timm:{self.name}' cannot take images of {size} x {size} "
                f"({_line(error)}); it was made for {wanted}: set data.size={wanted}"
            ) from error
        finally:
            self.train(training)

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images)  # type: ignore[no-any-return]

    @property
    def stages(self) -> Mapping[str, tuple[nn.Module, ...]]:
        """The parameter groups of timm's layer-wise learning-rate decay: stem, then stage1, stage2, ..."""
        from timm.models import group_parameters

        groups = group_parameters(self.model, self.model.group_matcher(coarse=True))
        named = dict(self.model.named_parameters())
        members = [{named[name] for name in names} for _, names in sorted(groups.items())]
        return {f"stage{i}" if i else "stem": tuple(_cover(self.model, group)) for i, group in enumerate(members)}

    def own_names(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a public file as this backbone names them; a ViT's position embedding fits its size."""
        converted = getattr(sys.modules[type(self.model).__module__], "checkpoint_filter_fn", None)
        values = converted(dict(tensors), self.model) if callable(converted) else tensors
        return {f"model.{name}": value for name, value in values.items()}

    def extra_repr(self) -> str:
        return f"{self.name}, timm {self.version}"


def _cover(module: nn.Module, group: set[nn.Parameter]) -> Iterator[nn.Module]:
    """The largest modules that hold parameters of the group alone; parameters beside such modules in a list."""
    own = list(module.parameters())
    if own and all(parameter in group for parameter in own):
        yield module
        return
    alone = [parameter for parameter in module.parameters(recurse=False) if parameter in group]
    if alone:
        yield nn.ParameterList(alone)
    for child in module.children():
        yield from _cover(child, group)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _sum(value: Any) -> int:
    """Of all whole numbers inside."""
    if isinstance(value, dict | list | tuple):
        return sum(map(_sum, value.values() if isinstance(value, dict) else value))
    return abs(value) if isinstance(value, int) else 0


def _timm() -> Any:
    try:
        import timm
    except ImportError as error:
        raise ResourceError(
            f"network.backbone 'timm:NAME' needs the package {error.name}; install it by: pip install 'endocil[timm]'"
        ) from error
    except RuntimeError as error:  # torchvision's build is another than torch's
        raise ResourceError(
            f"timm cannot be imported: {_line(error)}; install builds of torch and torchvision that belong together"
        ) from error
    return timm
