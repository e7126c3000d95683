"""Which method ranks first, and whether by more than noise: every incremental method against the best of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from endocil.errors import EndocilError
from endocil.metrics.metrics import TABLE_METRICS
from endocil.model.predictions import Head
from endocil.reports.averages import HEAD, Runs
from endocil.reports.comparisons import Examined, Versus, examine, versus
from endocil.reports.paired_predictions import has_predictions
from endocil.reports.tables import TITLES, Spread, either, listed, spread
from endocil.runs.experiments import data_label, split_told
from endocil.runs.records import RunRecord

# Who is ahead, and whether by more than noise: every method that learns task by task against the best of them.


@dataclass(frozen=True, eq=False)
class Contest:
    """The others minus the best, in every metric of the tables; p is adjusted for all these comparisons."""

    examined: Examined
    best: Runs
    found: tuple[Versus, ...]

    def of(self, metric: str) -> list[Versus]:
        """The comparisons in one metric, the nearest to the best first."""
        return sorted((one for one in self.found if one.metric == metric), key=lambda one: -one.difference)


def examined_or_none(runs: Sequence[RunRecord], head: Head = "softmax") -> Examined | None:
    """None where predictions are not at hand, or are of different images, which a page may show but nobody can pair."""
    if not all(map(has_predictions, runs)):
        return None
    try:
        return examine(runs, head)
    except EndocilError:
        return None


def contest(examined: Examined | None) -> Contest | None:
    """None where nothing can be compared. A method trained on everything at once takes no part."""
    if examined is None:
        return None
    those = [i for i, group in enumerate(examined.groups) if group.incremental]
    if len(those) < 2:
        return None
    groups = tuple(examined.groups[i] for i in those)
    learners = Examined(groups, tuple(examined.answers[i] for i in those), examined.head)
    best = max(groups, key=lambda group: _accuracy(group, examined.head))
    return Contest(learners, best, tuple(versus(learners, best, TABLE_METRICS)))


def _accuracy(group: Runs, head: Head) -> float:
    known = spread(run.metrics[head]["acc_last"] for run in group.results)
    return known.mean if known else float("-inf")


# The verdicts of a contest in words, and nothing stronger.


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


# Plain language, computed from the numbers: what was run, and what is seen.

PERCENT = "\N{NO-BREAK SPACE}%"
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
MOST_NAMED = 4  # methods told one by one in a sentence; of more, the ends of the range


def what_was_run(groups: Sequence[Runs]) -> str:
    """Two sentences: who learned what from how many images, split how; memory, epochs and seeds."""
    first = groups[0].first
    parts = {part: sum(counts.get(part, 0) for counts in first.images.values()) for part in ("train", "test")}
    learned = f"learned the {len(first.metrics['classes'])} classes of {data_label(first.settings)}"
    images = f"{parts['train']:,} training and {parts['test']:,} test images{_pixels(groups)}"
    return f"{_who(groups)} {learned}{_in_tasks(groups)}, with {images}, {_split(groups)}. {_how(groups)}"


def _who(groups: Sequence[Runs]) -> str:
    names = listed([group.label for group in groups])
    count = NUMBERS[len(groups)].capitalize() if len(groups) < len(NUMBERS) else str(len(groups))
    return names if len(groups) == 1 else f"{count} methods ({names})"


def _pixels(groups: Sequence[Runs]) -> str:
    sizes = either(group.first.settings["data"].get("size") for group in groups)
    return f" of {sizes} pixels" if sizes else ""


def _split(groups: Sequence[Runs]) -> str:
    return f"split {either(split_told(group.first.settings) for group in groups)}"


def _in_tasks(groups: Sequence[Runs]) -> str:
    sizes = [group.first.metrics["task_sizes"] for group in groups if group.incremental]
    if not sizes:
        return " all at once"
    if all(each == sizes[0] for each in sizes):
        told = f" in {len(sizes[0])} tasks of {listed(list(map(str, sizes[0])))} classes"
    else:
        told = f" in {either(len(each) for each in sizes)} tasks"
    at_once = [group.label for group in groups if not group.incremental]
    return told + (f" ({listed(at_once)}: all at once)" if at_once else "")


def _how(groups: Sequence[Runs]) -> str:
    seeds = sorted({seed for group in groups for seed in group.seeds})
    plural = "seed" if len(seeds) == 1 else "seeds"
    return f"{_memory(groups)}{_trained(groups)}; {plural} {listed(list(map(str, seeds)))}."


def _trained(groups: Sequence[Runs]) -> str:
    """Epochs as they were run: a method may train a task in several phases, or by a schedule of its own."""
    events = [event for group in groups for event in group.first.events_of("epoch")]
    epochs = either(event.get("epochs") for event in events)
    phases = {(event["task"], event.get("phase")) for event in events}
    each = "task" if len(phases) == len({task for task, _ in phases}) else "phase of a task"
    return f"; {epochs} epochs per {each}" if epochs else ""


def _memory(groups: Sequence[Runs]) -> str:
    keeping = [group.first.settings.get("memory", {}) for group in groups if group.first.exemplars]
    per_class = either(memory.get("per_class") for memory in keeping)
    total = either(memory.get("total") for memory in keeping)
    limits = [f"{per_class} images per class"] * bool(per_class) + [f"{total} images in all"] * bool(total)
    if not keeping or not limits:
        return "No images were kept between tasks"
    kept = " or ".join(limits)
    if len(keeping) == len(groups):
        return f"At most {kept} were kept as exemplars"
    return f"Methods with a memory kept at most {kept} as exemplars"


def what_is_seen(groups: Sequence[Runs]) -> list[str]:
    """The result in words, with what the number of seeds and test images allows to be said."""
    runs = [run for group in groups for run in group.results]
    return told(groups, contest(examined_or_none(runs)))


def told(groups: Sequence[Runs], found: Contest | None) -> list[str]:
    """The same where the comparisons are at hand already."""
    learners = [group for group in groups if group.incremental]
    said = [
        _accuracies(groups),
        _lead(learners, found),
        *(told_apart(found) if found else ()),
        _forgetting(learners),
        _noise(groups, found),
        elsewhere(found) if found else "",
    ]
    return [sentence for sentence in said if sentence]


def metric(group: Runs, name: str) -> Spread | None:
    return spread(run.metrics[HEAD][name] for run in group.results)


def _known(groups: Sequence[Runs], name: str) -> list[tuple[Spread, Runs]]:
    """The highest first."""
    known = [(value, group) for group in groups if (value := metric(group, name))]
    return sorted(known, key=lambda pair: -pair[0].mean)


def _accuracies(groups: Sequence[Runs]) -> str:
    known = [
        (group, f"{value.mean:.1f}{PERCENT}") for group in groups if (value := metric(group, "acc_last"))
    ]
    at_once = [f"{share} ({group.label})" for group, share in known if not group.incremental]
    told = [(group.label, share) for group, share in known if group.incremental]
    if not told:
        return f"Trained on everything at once, right on {listed(at_once)} of the test images."
    end = f"; trained on everything at once: {listed(at_once)}" if at_once else ""
    if len(told) > MOST_NAMED:
        (most, first), *_, (least, last) = _known([g for g in groups if g.incremental], "acc_last")
        span = f"{least.mean:.1f}{PERCENT} ({last.label}) to {most.mean:.1f}{PERCENT} ({first.label})"
        return f"After the last task, the methods are right on {span} of the test images{end}."
    opening = "{} is right on {}".format(*told[0])
    all_told = listed([opening, *(f"{label} on {share}" for label, share in told[1:])])
    return f"After the last task, {all_told} of the test images{end}."


def _lead(learners: Sequence[Runs], found: Contest | None) -> str:
    if len(order := _known(learners, "acc_last")) < 2:
        return ""
    (best, winner), (second, runner_up) = order[:2]
    gap = best.mean - second.mean
    wider = max(best.deviation or 0.0, second.deviation or 0.0)
    if round(gap, 1) == 0:
        return f"{winner.label} and {runner_up.label} are level."
    within = f", which is within the spread over seeds (± {wider:.1f})" if gap < wider else ""
    if found is not None:
        within = _tested(found)
    return f"{winner.label} is {gap:.1f} points ahead of {runner_up.label}{within}."


def _tested(found: Contest) -> str:
    """Whether the lead is noise, and its interval. The verdict is corrected for all comparisons of the page and the
    interval is not, so where the two disagree both are told with what they are."""
    nearest = found.of("acc_last")[0]  # the runner-up minus the best
    high, low = (f"{round(-end, 1) + 0.0:.1f}" for end in nearest.interval)
    if nearest.verdict != "inside noise":
        return f" (95{PERCENT} interval of the paired difference: {low} to {high})"
    if nearest.interval[0] <= 0 <= nearest.interval[1]:
        return f", which is inside noise (95{PERCENT} interval of the paired difference: {low} to {high})"
    return (
        f", which is inside noise after correction for {len(found.found)} comparisons: p = {nearest.adjusted:.2g} (95"
        f"{PERCENT} interval of the paired difference of this pair alone: {low} to {high})"
    )


def _forgetting(learners: Sequence[Runs]) -> str:
    known = _known(learners, "af")
    if not known:
        return ""
    what = "Points lost since a task was learned, on average over the earlier tasks"
    if len(known) > MOST_NAMED:
        (most, first), *_, (least, last) = known
        return f"{what}: from {least.mean:.1f} ({last.label}) to {most.mean:.1f} ({first.label})."
    told = [f"{group.label} {value.mean:.1f}" for group in learners if (value := metric(group, "af"))]
    return f"{what}: {listed(told)}."


def _noise(groups: Sequence[Runs], found: Contest | None) -> str:
    fewest = min(len(group.seeds) for group in groups)
    if fewest > 1:
        return "Values are means over the seeds; ± is the sample standard deviation."
    n = sum(map(sum, groups[0].first.metrics[HEAD]["confusion"]))
    shares = [value.mean / 100 for group in groups if (value := metric(group, "acc_last"))]
    error = 100 * max(math.sqrt(share * (1 - share) / n) for share in shares)
    chance = f"On {n:,} test images one accuracy alone has a standard error of up to {error:.1f} points."
    if found is not None:
        return f"One seed: what another seed would change is not in these numbers. {chance}"
    return f"One seed: differences of a few points are within noise. {chance}"
