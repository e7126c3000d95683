"""The learner of a run: a method, a memory and images, and all that the settings say about how it learns."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from endocil.assembly import Parts
from endocil.environment import processor
from endocil.first_task import FirstTasks, digest_of
from endocil.journal import Journal
from endocil.learner import Learner
from endocil.settings import Settings

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# settings that leave the first task as it is; where it learns is told by the device
NO_BITS = {
    "run": {
        "accelerator",
        "checkpoint_seconds",
        "evaluate",
        "evaluation_batch",
        "first_tasks",
        "gallery",
        "keep",
        "tensorboard",
    },
    "network": {"weights"},  # its values count, not where they lie
    "train": {"weight_decay", "milestones"},  # the first task's schedule has its own
}


def build_learner(parts: Parts, folder: Path, fabric: "Fabric", journal: Journal) -> Learner:
    chosen = parts.settings.run
    torch.set_num_threads(chosen.threads or torch.get_num_threads())
    parts.method.to(fabric.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Learner(
        parts.method,
        parts.memory,
        parts.images,
        folder=folder,
        fabric=fabric,
        journal=journal,
        augmentation=parts.augmentation,
        seed=parts.settings.seed,
        evaluation_batch=chosen.evaluation_batch,
        checkpoint_seconds=chosen.checkpoint_seconds,
        first_tasks=_first_tasks(parts),
        bits=parts.settings.train.precision,
        accumulate=parts.settings.train.accumulate,
        compiled=parts.settings.train.compile,
    )


def _first_tasks(parts: Parts) -> FirstTasks | None:
    """The store of first tasks; of [train] and [run] all counts as deciding bits but what is known not to."""
    folder = parts.settings.run.first_tasks
    if folder is None:
        return None
    facts = parts.settings.model_dump(include={"network", "train", "run"}, exclude=NO_BITS)
    if ":" in parts.settings.method.name:  # of a method from outside nothing is known: all its options count
        facts["method"] = parts.settings.method.model_dump()
    facts["processor"] = processor()
    start = digest_of(parts.method.backbone.state_dict())
    return FirstTasks(Path(folder).expanduser(), start, facts)


def remarks(parts: Parts, fabric: "Fabric") -> list[str]:
    """What the settings ask for and these devices do otherwise."""
    if fabric.world_size == 1 or parts.settings.run.first_tasks is None:
        return []
    return [
        "run.first_tasks is for runs of one process, as several round otherwise: the first task is trained here"
    ]


def sharing_cores(settings: Settings, devices: int) -> Settings:
    """Processes on one machine share its cores, unless the settings say how many threads each has."""
    if devices == 1 or settings.run.threads is not None:
        return settings
    threads = max(1, torch.get_num_threads() // devices)
    return settings.model_copy(update={"run": settings.run.model_copy(update={"threads": threads})})
