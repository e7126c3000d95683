"""What runs were allowed to spend: epochs, image size, width of the network and exemplars.

More of it makes any method better, so that methods are ranked only where their budgets are the same."""

from collections.abc import Sequence
from dataclasses import dataclass

from endocil.reports.averages import Runs

EPOCHS, SIZE, WIDTH, EXEMPLARS = "Epochs", "Image size", "Width", "Exemplars"


@dataclass(frozen=True)
class Budgets:
    """Of each experiment, in the order given: the parts of the budget in which they differ."""

    titles: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]  # of each experiment, one for each title; empty where it has none

    def describe(self, index: int) -> str:
        """4 epochs, 20 exemplars per class"""
        return ", ".join(map(_in_words, self.titles, self.values[index]))

    def classes(self, among: Sequence[int]) -> list[list[int]]:
        """These experiments in groups of equal budget, in the order of their first member."""
        members: dict[tuple[str, ...], list[int]] = {}
        for index in among:
            members.setdefault(self.values[index], []).append(index)
        return list(members.values())


def _in_words(title: str, value: str) -> str:
    if title == EXEMPLARS:
        number, _, limit = value.partition(" ")
        return f"{number} exemplars {limit}" if value else "no exemplars"
    return {EPOCHS: f"{value} epochs", SIZE: f"images of {value} pixels", WIDTH: f"width {value}"}[title]


def budgets(groups: Sequence[Runs]) -> Budgets:
    """A method that keeps no exemplars by design has the same budget as those that keep equally many."""
    parts = [_budget(group) for group in groups]
    titles = tuple(title for title in parts[0] if len({part[title] for part in parts} - {""}) > 1)
    return Budgets(titles, tuple(tuple(part[title] for title in titles) for part in parts))


def _budget(group: Runs) -> dict[str, str]:
    settings = group.first.settings
    memory = settings.get("memory", {}) if group.first.exemplars else {}
    per_class, total = memory.get("per_class"), memory.get("total")
    exemplars = f"{per_class} per class" if per_class else f"{total} in all" if total else ""
    return {
        EPOCHS: str(settings.get("train", {}).get("epochs", "")),
        SIZE: str(settings.get("data", {}).get("size", "")),
        WIDTH: str(settings.get("network", {}).get("width", "")),
        EXEMPLARS: exemplars,
    }
