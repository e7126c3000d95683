"""The rank of this process, read from the environment before torch is loaded."""

import os

from endocil.errors import SettingsError

PLACES = ("NODE_RANK", "LOCAL_RANK")  # without a launcher: of the machine, and of a process on it


def is_rank_zero() -> bool:
    """Whether this process prints and writes for all of them."""
    if "RANK" in os.environ:  # set by torchrun
        return os.environ["RANK"] == "0"
    if slurm_tasks() > 1:
        return os.environ.get("SLURM_PROCID", "0") == "0"
    return all(os.environ.get(name, "0") == "0" for name in PLACES)


def slurm_tasks() -> int:
    """How many processes srun has started; 1 in a batch script without srun, however many tasks the job has."""
    return environment_number("SLURM_STEP_NUM_TASKS")


def environment_number(name: str) -> int:
    text = os.environ.get(name, "1")
    if not text.isdigit() or int(text) < 1:
        raise SettingsError(f"the environment variable {name} is '{text}'; expected a number of 1 or more")
    return int(text)
