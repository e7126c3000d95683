"""After a task: exemplars chosen and class means measured, by one pass over the new images and the old exemplars."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from endocil.errors import EndocilError
from endocil.evaluation import CLASS_MEANS, View, class_means, view
from endocil.images.batch import ImageSet
from endocil.memory import Choice, ExemplarMemory
from endocil.methods.method import Method, Task
from endocil.processes import by_one

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def remember(
    method: Method, memory: ExemplarMemory, new: ImageSet, task: Task, batch_size: int, fabric: "Fabric"
) -> list[Choice]:
    """What the memory keeps of the new images' classes; the means of all classes go into the statistics."""
    images = new + memory.images(new.images)
    seen = view(method, images, batch_size, to_choose=True, fabric=fabric)
    if not bool(seen.features.isfinite().all()):
        raise EndocilError(
            f"the network's features are not finite after task {task.index}; lower train.learning_rate"
        )
    # images of a known class compete with its old exemplars
    candidates = torch.nonzero(torch.isin(images.labels, torch.tensor(new.classes()))).flatten()
    chosen = _choose(memory, images.take(candidates), seen.take(candidates), task, fabric)
    exemplars = memory.images(new.images)
    features = seen.features[_positions(images.rows, exemplars.rows)]
    method.statistics[CLASS_MEANS] = class_means(features, exemplars.labels, task.n_seen)
    return chosen


def _choose(
    memory: ExemplarMemory, candidates: ImageSet, seen: View, task: Task, fabric: "Fabric"
) -> list[Choice]:
    """Of several processes one chooses: a last digit must not make them differ."""

    def choose() -> tuple[list[Choice], dict[str, Tensor]]:
        return memory.add(candidates, seen.choosing, seen.scores, task.index), memory.state()

    chosen, state = by_one(fabric, choose)
    memory.load_state(state)
    return chosen


def _positions(rows: Tensor, wanted: Tensor) -> Tensor:
    """Where the wanted rows stand among the rows."""
    order = torch.argsort(rows, stable=True)
    return order[torch.searchsorted(rows[order], wanted)]
