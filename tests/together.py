"""What one of several processes does in tests/test_processes.py: `python together.py RANK SIZE PORT FOLDER`.

Every process lives each method's first task alone, then trains a few steps of the second: by itself, and with the
others. The first process writes how far the two networks are apart.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from life import FROZEN, TRAINED, Life, new_method, state_of
from pictures import make_images
from present import present
from torch import nn

from endocil.data.augment import Augmentation
from endocil.data.batches import share_of, training_batches
from endocil.data.cache import Images
from endocil.learning.checkpoint import grow
from endocil.learning.features import FeatureStore
from endocil.learning.optimizers import optimizer_of
from endocil.learning.parallel import Processes, all_gather, all_reduce, learning_on
from endocil.learning.training import only_training, step
from endocil.methods.base import Phase
from endocil.networks import sync_batch_norm

BATCH, STEPS = 12, 3
RATE = 1e-3  # small: a network with frozen statistics that has hardly learned would run away


def train(life: Life, phase: Phase, fabric: Processes, *, frozen_statistics: bool) -> None:
    """Three steps, the last of an uneven batch."""
    images = phase.images.take(torch.arange(BATCH * (STEPS - 1) + 5) % len(phase.images))
    share = (fabric.global_rank, fabric.world_size)
    batches = training_batches(images, BATCH, Augmentation(), 0, (1, phase.name, 0), fabric.device, share)
    with only_training(life.method, (*phase.train, phase.gradients)):
        for module in life.method.modules():
            if isinstance(module, nn.BatchNorm2d) and frozen_statistics:
                module.eval()
        optimizer = optimizer_of(replace(phase, schedule=replace(phase.schedule, learning_rate=RATE)))
        for batch in batches:
            step(phase, batch, optimizer, fabric)


def fisher_apart(images: Images, folder: Path, team: Processes) -> float:
    """EWC's Fisher as PyCIL measures it, batch norm's statistics moving on: every process has the whole batches."""
    lives = [Life(images, folder / str(i), new_method("ewc", fisher="pycil"), increments=(2, 2, 2)) for i in range(2)]
    for life in lives:
        task = life.scenario.tasks[0]
        grow(life.method, task, team.device)
        if life is lives[1]:
            sync_batch_norm(life.method)
        life.method.consolidate(task, life.data(task))
    states = [{**life.method.state_dict(), **life.method.statistics} for life in lives]
    return max(float((states[0][key] - states[1][key]).abs().max()) for key in states[0])


# a large epsilon: else AdamW divides a gradient by its length, and of one near 0 rounding decides the sign
ADAMW: dict[str, Any] = {
    "optimizer": "adamw",
    "optimizer_options": {"eps": 0.01},
    "clip_gradients": 0.1,
    "backbone_factor": 0.5,
}


def apart(
    name: str, images: Images, folder: Path, team: Processes, *, frozen_statistics: bool, **schedule: Any
) -> float:
    where = [folder / f"{name}-{i}" for i in range(2)]
    lives = [Life(images, place, new_method(name), increments=(2, 2, 2)) for place in where]
    before = min(1, len(lives[0].scenario.tasks) - 1)  # joint training has one task only
    for life, fabric in zip(lives, (lives[0].fabric, team), strict=True):
        task = life.live(before).scenario.tasks[before]
        grow(life.method, task, fabric.device)
        if fabric is team:
            sync_batch_norm(life.method)
        for phase in life.method.phases(task, life.data(task)):
            changed = replace(phase, schedule=replace(phase.schedule, **schedule))
            train(life, changed, fabric, frozen_statistics=frozen_statistics)
    one, other = (life.method.state_dict() for life in lives)
    gaps = [(one[key].double() - other[key].double()).abs().max() / (1 + one[key].abs().max()) for key in one]
    return float(torch.stack(gaps).nan_to_num(torch.inf).max())


def sums_apart(name: str, images: Images, folder: Path, team: Processes) -> float:
    """The whole life of a method that learns by sums, its images shared by the processes."""
    lives = [Life(images, folder / f"{name}-{i}", new_method(name)) for i in range(2)]
    lives[1].learner.fabric = team
    lives[1].learner.features = FeatureStore(folder.parent / "features")  # of all processes
    one, other = (state_of(life.live().method) for life in lives)
    return max(float((one[key].double() - other[key].double()).abs().max()) for key in one)


def norm_apart(team: Processes, n: int) -> float:
    """Batch norm in float64: shares of some images against all of them."""
    images = torch.linspace(-3, 5, n * 3 * 4 * 4, dtype=torch.float64).sin().view(n, 3, 4, 4) * 4
    towards = torch.linspace(0, 9, images.numel(), dtype=torch.float64).cos().view_as(images)
    whole, shared = nn.BatchNorm2d(3).double(), nn.BatchNorm2d(3).double()
    for norm in (whole, shared):
        norm.load_state_dict({**norm.state_dict(), "weight": torch.tensor([0.5, -2, 3]), "bias": torch.arange(3)})
    sync_batch_norm(shared)
    mine = share_of(n, team.global_rank, team.world_size)
    found = []
    for norm, place in ((whole, slice(None)), (shared, mine)):
        given = images[place].clone().requires_grad_(True)
        given_back = norm(given)
        (given_back * towards[place]).sum().backward()
        gradients = [present(norm.weight.grad), present(norm.bias.grad)]
        if norm is shared:
            all_reduce(team, gradients)
        part = mine if norm is whole else slice(None)
        found.append(
            [
                given_back[part],
                present(given.grad)[part],
                *gradients,
                present(norm.running_mean),
                present(norm.running_var),
            ]
        )
    together = zip(*found, strict=True)
    return max(float((one - other).abs().max()) for one, other in together if one.numel())


def pieces_apart(images: Images, folder: Path, team: Processes) -> float:
    """17 images on two processes in at most four pieces each, batch norm learning: every process makes as many."""
    life = Life(images, folder / "pieces", new_method("icarl"), increments=(2, 2, 2))
    task = life.scenario.tasks[0]
    grow(life.method, task, team.device)
    sync_batch_norm(life.method)
    (phase,) = life.method.phases(task, life.data(task))
    share = (team.global_rank, team.world_size)
    batches = training_batches(phase.images, 17, Augmentation(), 0, (0, 0, 0), team.device, share)
    with only_training(life.method, (*phase.train, phase.gradients)):
        optimizer = optimizer_of(phase)
        for batch in batches:
            step(phase, batch, optimizer, team, accumulate=4)
    mine = life.method.classifier.weight.detach()
    theirs = all_gather(team, mine)
    return max(float((mine - other).abs().max()) for other in theirs)


def main() -> None:
    rank, size, port, folder = sys.argv[1:]
    os.environ |= {"LOCAL_RANK": rank, "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.set_num_threads(1)
    here = Path(folder) / rank
    images = make_images([14, 11, 12, 4, 13, 9])
    with learning_on("cpu", int(size)) as team:
        assert team.world_size == int(size)
        found = {
            f"{name} {'eval' if frozen else 'train'}": apart(
                name, images, here / str(frozen), team, frozen_statistics=frozen
            )
            for name in TRAINED
            for frozen in (True, False)
        }
        for name in ("endocil", "dgr"):
            found[f"{name} adamw"] = apart(name, images, here / "adamw", team, frozen_statistics=True, **ADAMW)
        found |= {f"{name} sums": sums_apart(name, images, here / "sums", team) for name in FROZEN}
        found["batch norm"] = max(all_gather(team, norm_apart(team, 7)))
        found["batch norm, one without images"] = max(all_gather(team, norm_apart(team, 1)))
        found["fisher"] = fisher_apart(images, here / "fisher", team)
        found["pieces"] = pieces_apart(images, here, team)
    if rank == "0":
        (Path(folder) / "apart.json").write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main()
