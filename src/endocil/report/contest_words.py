"""The verdicts of a contest in words, and nothing stronger."""

from endocil.report.contest import Contest
from endocil.report.tables import TITLES
from endocil.report.wording import listed


def told_apart(found: Contest) -> list[str]:
    """Of more than two methods: which are behind by more than noise, and which are better in another column."""
    others = found.of("acc_last")
    if len(others) < 2:
        return []
    noise = [one.group.label for one in others if one.verdict == "inside noise"]
    behind = [one.group.label for one in others if one.verdict == "worse"]
    by = f"In accuracy after the last task, {found.best.label} is ahead by more than noise of"
    said = [f"{by} {listed(behind) if behind else 'none of the others'}."]
    if noise and behind:
        said.append(f"It cannot be told apart from {listed(noise)}.")
    better = [f"{one.group.label} ({TITLES[one.metric]})" for one in found.found if one.verdict == "better"]
    if better:
        said.append(f"Better than {found.best.label} by more than noise in another column: {listed(better)}.")
    return [" ".join(said)]


def elsewhere(found: Contest) -> str:
    """Of two methods: the other columns in which they differ by more than noise."""
    if len(others := found.of("acc_last")) != 1:
        return ""
    best, other = found.best.label, others[0].group.label
    said = []
    for verdict, ahead, behind in (("worse", best, other), ("better", other, best)):
        where = [
            TITLES[one.metric] for one in found.found if one.verdict == verdict and one.metric != "acc_last"
        ]
        if where:
            said.append(f"In {listed(where)} {ahead} is better than {behind} by more than noise.")
    return " ".join(said)
