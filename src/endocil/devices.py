"""What learns: a processor, a graphics card, or several of them on one or more machines.

One process runs for each device. `devices` processes on each of `nodes` machines are started from here, or have been
started by torchrun or Slurm: then their number is read from the environment.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from endocil.errors import EndocilError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

STARTED_BY = {  # launcher -> (its sign, processes on this machine, machines)
    "torchrun": ("TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
    "Slurm": ("SLURM_PROCID", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES"),
}

RANKS = ("RANK", "SLURM_PROCID")  # torchrun's and Slurm's number of a process among all
PLACES = ("NODE_RANK", "LOCAL_RANK")  # otherwise: of the machine, and of a process on it
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Connection refused", "NCCL")
PATIENCE = timedelta(hours=1)  # one process may have much to do alone, such as measuring leaks


def leads() -> bool:
    """Whether this process speaks and writes for all: known from the environment, before anything is set up."""
    known = [os.environ[name] for name in RANKS if name in os.environ][:1]
    known = known or [os.environ[name] for name in PLACES if name in os.environ]
    return all(number == "0" for number in known)


@contextmanager
def learning_on(accelerator: str, devices: int = 1, nodes: int = 1) -> Iterator["Fabric"]:
    """Fabric on these devices, with all its processes running."""
    import torch.distributed

    fabric = _start(accelerator, devices, nodes)
    try:
        yield fabric
    except RuntimeError as error:
        lost = isinstance(error, torch.distributed.DistError) or any(sign in str(error) for sign in LOST)
        if fabric.world_size == 1 or not lost:
            raise
        raise EndocilError(
            "another process of this run has ended; it tells why, if it could. Mend that and resume the run"
        ) from error
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _start(accelerator: str, devices: int, nodes: int) -> "Fabric":
    launcher, devices, nodes = started(devices, nodes)
    if devices * nodes == 1:
        return one_device(accelerator)
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy

    # without a launcher the processes are started here, whatever Slurm has left in the environment
    plugins = [] if launcher else [LightningEnvironment()]
    with _refusing(accelerator, f"with {devices} devices on {nodes} machines"):
        strategy = DDPStrategy(timeout=PATIENCE)
        fabric = _fabric(accelerator, devices=devices, num_nodes=nodes, strategy=strategy, plugins=plugins)
        fabric.launch()
    if fabric.world_size != devices * nodes:
        raise EndocilError(
            f"{devices} devices on {nodes} machines were asked for, but {fabric.world_size} processes are running; "
            f"start as many by {launcher or 'srun or torchrun'}"
        )
    return fabric


def one_device(accelerator: str) -> "Fabric":
    """This process alone on a device."""
    with _refusing(accelerator, "here"):
        return _fabric(accelerator, devices=1)


def _fabric(accelerator: str, **how: Any) -> "Fabric":
    from lightning_fabric import Fabric

    return Fabric(accelerator=accelerator, **how)


@contextmanager
def _refusing(accelerator: str, asked: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, RuntimeError) as error:
        raise EndocilError(f"run.accelerator '{accelerator}' cannot be used {asked}: {error}") from error


def started(devices: int, nodes: int) -> tuple[str, int, int]:
    """The launcher, and how many devices on how many machines it has started; without one "" and what is asked for."""
    if devices < 1 or nodes < 1:
        raise EndocilError(
            f"{devices} devices on {nodes} machines were asked for; expected 1 or more of each"
        )
    for launcher, (sign, here, machines) in STARTED_BY.items():
        if sign not in os.environ or here not in os.environ:
            continue  # a Slurm job of one task starts its processes itself
        found = _number(here), _number(machines)
        if (devices, nodes) not in ((1, 1), found):
            raise EndocilError(
                f"{devices} devices on {nodes} machines were asked for, but {launcher} has started {found[0]} "
                f"processes on each of {found[1]}; leave --devices and --nodes out, or ask for as many"
            )
        return launcher, *found
    return "", devices, nodes


def _number(name: str) -> int:
    text = os.environ.get(name, "1")
    if not text.isdigit() or int(text) < 1:
        raise EndocilError(f"the environment variable {name} is '{text}'; expected a number of 1 or more")
    return int(text)
