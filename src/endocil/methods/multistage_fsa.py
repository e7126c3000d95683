"""MultiStage-FSA: MultiStage on a network that is trained from scratch on the first task, and frozen then.

    first task:  minimise the cross-entropy over pairs (class, rotation), each image turned by 0, 90, 180 or 270 degrees
    every task:  sums over the new images, and linear discriminants from them in closed form (multistage.py)

No image is kept and nothing is forgotten: after the first task, any order of the other tasks gives the same model.
First-session adaptation is that of Panos et al. (ICCV 2023), who start from pretrained weights and train by labels
alone; labels of pairs are those of Lee et al. (ICML 2020). A network that learned to separate the few classes of a
first task has little left for the others; rotations make it look at the whole image.
"""

from typing import Any

from torch import nn

from endocil.methods.multistage import MultiStage


class MultiStageFSA(MultiStage):
    """MultiStage with defaults for a network without pretrained weights, chosen on training images (docs/successor.md).

    Maps of small images have few places, so those of stride 4 count too."""

    def __init__(
        self,
        backbone: nn.Module,
        *,
        first_task: str = "rotations",  # or "labels"; "frozen": as it is, even if random
        stride: int = 4,
        penalty: float = 0.1,
        **inherited: Any,
    ) -> None:
        super().__init__(backbone, first_task=first_task, stride=stride, penalty=penalty, **inherited)
