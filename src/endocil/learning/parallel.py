"""Devices and processes: `learning_on` starts them, and with several processes each takes a share of every batch.

They start equal and draw the same random numbers; gradients are added up before each step, so they stay equal.
With one process nothing here costs anything.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
import torch.distributed
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from endocil.errors import EndocilError
from endocil.io.process import environment_number, slurm_tasks
from endocil.io.terminal import printable

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")


class Processes(Protocol):
    """Those that learn together, as one of them sees them: `Fabric`, or `OneProcess`."""

    @property
    def device(self) -> torch.device: ...
    @property
    def world_size(self) -> int: ...
    @property
    def global_rank(self) -> int: ...
    def broadcast(self, value: T, /) -> T: ...


class OneProcess:
    """This process alone on the CPU. Fabric would say the same, but importing it takes longer than a frozen model needs
    to learn a class."""

    device, world_size, global_rank = torch.device("cpu"), 1, 0

    def broadcast(self, value: T, /) -> T:
        return value


def all_reduce(fabric: Processes, tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its sum over the processes."""
    if fabric.world_size > 1:
        _in_one_message(tensors, torch.distributed.all_reduce)


def broadcast(fabric: Processes, tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by that of rank 0: other processors may have rounded differently."""
    if fabric.world_size > 1:
        _in_one_message(tensors, lambda flat: torch.distributed.broadcast(flat, 0))


@torch.no_grad()
def _in_one_message(tensors: Iterable[Tensor], send: Callable[[Tensor], object]) -> None:
    """One message for each dtype and device."""
    alike: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        alike.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for same in alike.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in same])
        send(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in same])
        for tensor, part in zip(same, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))


def all_gather(fabric: Processes, value: T) -> list[T]:
    """The values of all processes, in their order, on every process."""
    if fabric.world_size == 1:
        return [value]
    values: list[T | None] = [None] * fabric.world_size
    torch.distributed.all_gather_object(values, value)
    return values  # type: ignore[return-value]


def on_rank_zero(fabric: Processes, action: Callable[[], T]) -> T:
    """Run an action on rank 0 only; every process gets its result, or raises its error."""
    if fabric.world_size == 1:
        return action()
    answer: tuple[T | None, str | None] = (None, None)
    own: Exception | None = None
    if fabric.global_rank == 0:
        try:
            answer = (action(), None)
        except Exception as error:  # whatever it is: the others wait
            own, answer = error, (None, str(error) or type(error).__name__)
    value, problem = fabric.broadcast(answer)
    if own is not None:
        raise own
    if problem is not None:
        raise EndocilError(problem)
    return value  # type: ignore[return-value]


def tensors_of_rank_zero(fabric: Processes, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of rank 0, on every process and on its own device: sent as they are, they would all come to the first."""
    sent = on_rank_zero(fabric, lambda: {name: value.cpu() for name, value in tensors.items()})
    return {name: value.to(fabric.device) for name, value in sent.items()}


def peak_megabytes(device: torch.device) -> float:
    """The most memory in use at any one time: of the accelerator, or of the whole process on a CPU; 0 if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    try:
        import resource
    except ImportError:  # not on every system
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


TORCHRUN, SLURM = "torchrun", "Slurm"
MEETING = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")  # without a launcher, where machines find each other
COMPILER = ("torch._dynamo", "torch._inductor")  # whose errors tell that torch.compile cannot be used
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Connection refused", "NCCL")
FAILED = "failed"  # the key of a failed process's message
LOOK_SECONDS, GRACE_SECONDS = 0.5, 3.0  # between two looks at it; for a process that is about to end by itself
PATIENCE = timedelta(hours=1)  # one process may have much to do alone, such as measuring leaks


@contextmanager
def learning_on(accelerator: str, devices: int = 1, nodes: int = 1) -> Iterator[Processes]:
    """The processes on these devices, all of them running: Fabric's, or this one alone on the CPU."""
    import torch.distributed

    fabric = _start(accelerator, devices, nodes)
    try:
        with ending_together(fabric), explaining_compiler_errors():
            yield fabric
    except RuntimeError as error:
        lost = isinstance(error, torch.distributed.DistError) or any(sign in str(error) for sign in LOST)
        if fabric.world_size == 1 or not lost:
            raise
        raise EndocilError(
            "another process of this run has ended; its own message says why, if it could write one. "
            "Fix the cause and resume the run"
        ) from error
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


@contextmanager
def ending_together(fabric: Processes) -> Iterator[None]:
    """An error on one process ends all of them within seconds, whatever they wait for or work on, with its message.

    Collectives would wait for an hour (PATIENCE), and those of GPUs do not notice that a process has ended."""
    if fabric.world_size == 1:
        yield
        return
    store, over = _meeting_place(fabric), threading.Event()
    watch = threading.Thread(target=_end_with_others, args=(store, over, fabric.global_rank), daemon=True)
    watch.start()
    try:
        yield
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt):  # which all of them get, or answer after their epoch
            with suppress(RuntimeError):
                store.set(FAILED, f"process {fabric.global_rank} has failed: {error or type(error).__name__}")
                time.sleep(2 * LOOK_SECONDS)  # the store ends with process 0
        raise
    finally:
        over.set()


def _meeting_place(fabric: Processes) -> TCPStore:
    """A store of keys and values beside that of the collectives, which only one of a process's threads may use."""
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    first = fabric.global_rank == 0
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False) if first else None
    port = fabric.broadcast(store.port if store else 0)
    return store or TCPStore(host, port, is_master=False, wait_for_workers=False)


def _end_with_others(store: TCPStore, over: threading.Event, rank: int) -> None:
    """Until this process is done, or one has failed."""
    while not over.wait(LOOK_SECONDS):
        try:
            message = store.get(FAILED).decode() if store.check([FAILED]) else ""
        except RuntimeError:
            message = "process 0 of this run has ended"
        if message and not over.wait(GRACE_SECONDS):
            text = printable(" ".join(message.split()))
            print(f"endocil, process {rank}: {text}; this one ends too", file=sys.stderr)
            os._exit(1)


@contextmanager
def explaining_compiler_errors() -> Iterator[None]:
    """An error of torch.compile becomes one line that says what to do."""
    try:
        yield
    except RuntimeError as error:
        if not type(error).__module__.startswith(COMPILER):
            raise
        raise EndocilError(
            f"train.compile does not work here: {str(error).strip().splitlines()[0]}; install a C++ compiler, or "
            "run without train.compile"
        ) from error


def _start(accelerator: str, devices: int, nodes: int) -> Processes:
    launcher, devices, nodes = started(devices, nodes)
    if devices * nodes == 1:
        return one_device(accelerator)
    if nodes > 1 and not launcher:
        _check_meeting(nodes)
    from lightning_fabric.strategies.ddp import DDPStrategy

    with _refusing(accelerator, f"with {devices} devices on {nodes} machines"):
        strategy = DDPStrategy(timeout=PATIENCE)
        fabric = _fabric(accelerator, devices=devices, num_nodes=nodes, strategy=strategy, launcher=launcher)
        fabric.launch()
    if fabric.world_size != devices * nodes:
        raise EndocilError(
            f"{devices} devices on {nodes} machines were asked for, but {fabric.world_size} processes are running; "
            f"start as many by {launcher or 'srun or torchrun'}"
        )
    return fabric


def one_device(accelerator: str) -> Processes:
    """This process alone on a device."""
    if accelerator == "cpu" or (accelerator == "auto" and not torch.accelerator.is_available()):
        return OneProcess()
    with _refusing(accelerator, "here"):
        return _fabric(accelerator, devices=1, launcher="")


def _fabric(accelerator: str, *, launcher: str, **how: Any) -> "Fabric":
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment

    # without a launcher the processes are started here, whatever Slurm has left in the environment
    environment = None if launcher else LightningEnvironment()
    return Fabric(accelerator=accelerator, plugins=environment, **how)


@contextmanager
def _refusing(accelerator: str, asked: str) -> Iterator[None]:
    try:
        yield
    except (ImportError, ValueError, RuntimeError) as error:
        raise EndocilError(f"run.accelerator '{accelerator}' cannot be used {asked}: {error}") from error


def started(devices: int, nodes: int) -> tuple[str, int, int]:
    """The launcher, and how many devices on how many machines it has started; without one "" and what is asked for."""
    if devices < 1 or nodes < 1:
        raise EndocilError(f"{devices} devices on {nodes} machines were asked for; expected 1 or more of each")
    launcher, *found = _launched()
    if not launcher:
        return "", devices, nodes
    if [devices, nodes] not in ([1, 1], found):
        raise EndocilError(
            f"{devices} devices on {nodes} machines were asked for, but {launcher} has started {found[0]} "
            f"processes on each of {found[1]}; leave --devices and --nodes out, or ask for as many"
        )
    return launcher, found[0], found[1]


def _launched() -> tuple[str, int, int]:
    """The launcher, how many processes it has started on each machine, and machines; "" where there is none."""
    if "TORCHELASTIC_RUN_ID" in os.environ and "LOCAL_WORLD_SIZE" in os.environ:
        return TORCHRUN, environment_number("LOCAL_WORLD_SIZE"), environment_number("GROUP_WORLD_SIZE")
    tasks, machines = slurm_tasks(), environment_number("SLURM_STEP_NUM_NODES")
    if tasks == 1:
        return "", 1, 1
    if tasks % machines:
        raise EndocilError(
            f"Slurm has started {tasks} processes on {machines} machines; start as many on each, by srun's "
            "--ntasks-per-node"
        )
    return SLURM, tasks // machines, machines


def _check_meeting(nodes: int) -> None:
    """Processes that are told too little would wait for each other for an hour."""
    missing = [name for name in MEETING if not os.environ.get(name)]
    if missing:
        raise EndocilError(
            f"{nodes} machines were asked for, but the environment has no {', '.join(missing)}; set "
            f"{', '.join(MEETING)} on each machine, or start the run by torchrun or srun"
        )
    port, place = os.environ["MASTER_PORT"], os.environ["NODE_RANK"]
    if not (port.isdigit() and 0 < int(port) < 65536):
        raise EndocilError(f"the environment variable MASTER_PORT is '{port}'; expected a free port's number")
    if not (place.isdigit() and int(place) < nodes):
        raise EndocilError(
            f"the environment variable NODE_RANK is '{place}'; expected this machine's number, 0 to {nodes - 1}"
        )
