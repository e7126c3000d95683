"""In what runs are not at the paper's scale: other settings than its preset's, other tasks, other test images."""

from collections.abc import Mapping, Sequence
from typing import Any

from endocil.report.grouping import differing, flat
from endocil.report.ledger import Entry
from endocil.report.names import written

Json = Mapping[str, Any]
SECTIONS = ("data.", "scenario.", "network.", "train.")
# Where images lie, which the paper's split took (it tells no seed), what changes no result by intent, and what is
# compared by what came of it.
FREE = frozenset(
    {
        "data.name",
        "data.root",
        "data.skip_unreadable",
        "scenario.split_seed",
        "scenario.increments",
        "train.compile",
        "train.accumulate",
    }
)


def unlike(members: Sequence[Entry], facts: Json | None, presets: Mapping[str, Json]) -> list[str]:
    """What is not the paper's. `facts`: its data set, None for data of one's own; `presets`: its settings by data set,
    complete. A setting that an entry does not have is one that came later, and was as it is now."""
    settings = members[0].settings
    said = [] if facts else ["not one of the paper's data sets"]
    said += [
        f"{key} {_told(value)} instead of {_told(wanted)}"
        for key, value, wanted in _beside(settings, presets)
        if value != wanted
    ]
    return said + (_other_images(facts, members) if facts else [])


def _told(value: Any) -> str:
    return "none" if value is None or value == [] else written(value)


def _beside(settings: Json, presets: Mapping[str, Json]) -> list[tuple[str, Any, Any]]:
    """Each setting that may change a result, ours and the paper's."""
    ours = _compared(settings)
    name = settings["data"]["name"]
    if name in presets:
        wanted = _compared(presets[name])
        return [(key, value, wanted.get(key)) for key, value in ours.items()]
    theirs = [_compared(each) for each in presets.values()]  # of other data what all of the paper's share
    own = differing(theirs) | {key for key in ours if key.startswith("data.") and key not in theirs[0]}
    return [(key, value, theirs[0].get(key)) for key, value in ours.items() if key not in own]


def _compared(settings: Json) -> dict[str, Any]:
    values = {k: v for k, v in flat(settings).items() if k.startswith(SECTIONS) and k not in FREE}
    if values.get("scenario.tasks") != "given":
        values.pop("scenario.tasks", None)  # a number of tasks: the sizes of the tasks tell it
    return values


def _other_images(facts: Json, members: Sequence[Entry]) -> list[str]:
    said = []
    sizes, tested = task_sizes(members), members[0].metrics["test_images"][-1]
    if list(sizes) != facts["increments"]:
        said.append(f"tasks of {written(list(sizes))} classes instead of {written(facts['increments'])}")
    if tested != facts["test_images"]:
        said.append(f"{tested:,} test images instead of {facts['test_images']:,}")
    return said


def task_sizes(entries: Sequence[Entry]) -> Sequence[int]:
    """Of the methods that learn task by task, where there is one."""
    sizes: list[Sequence[int]] = [entry.metrics["task_sizes"] for entry in entries]
    return max(sizes, key=len)
