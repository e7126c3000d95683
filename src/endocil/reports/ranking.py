"""Which method ranks first, and whether significantly: every incremental method against the best of them, in words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from endocil.io.text_tables import Spread, either, listed
from endocil.metrics.metrics import TABLE_METRICS
from endocil.reports.averages import HEAD, Runs, metric_spread
from endocil.reports.comparisons import NOT_SIGNIFICANT, ComparableRuns, Versus, versus
from endocil.reports.tables import TITLES, budgets_of
from endocil.runs.experiments import UNKNOWN, budget, data_title, split_description

PERCENT = "\N{NO-BREAK SPACE}%"
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
MOST_NAMED = 4  # methods named one by one in a sentence; of more, the ends of the range


@dataclass(frozen=True, eq=False)
class Ranking:
    """The others minus the best, in every metric of the tables; p is adjusted for all these comparisons."""

    compared: ComparableRuns
    best: Runs
    differences: tuple[Versus, ...]

    def of(self, metric: str) -> list[Versus]:
        """The comparisons in one metric, the nearest to the best first."""
        own = [one for one in self.differences if one.metric == metric]
        return sorted(own, key=lambda one: -one.difference)


def ranking(compared: ComparableRuns | None, *, rank_anyway: bool = False) -> Ranking | None:
    """None where nothing can be compared, or budgets differ. Methods that learn all classes at once are left out."""
    if compared is None:
        return None
    learners = [i for i, group in enumerate(compared.groups) if group.incremental]
    groups = tuple(compared.groups[i] for i in learners)
    if len(groups) < 2 or (budgets_of(groups).differing and not rank_anyway):
        return None
    chosen = ComparableRuns(groups, tuple(compared.predictions[i] for i in learners), compared.head)
    best = _highest_first(groups, "acc_last", compared.head)[0][1]
    return Ranking(chosen, best, tuple(versus(chosen, best, TABLE_METRICS)))


def _highest_first(groups: Sequence[Runs], name: str, head: str = HEAD) -> list[tuple[Spread, Runs]]:
    known = [(value, group) for group in groups if (value := metric_spread(group, name, head))]
    return sorted(known, key=lambda pair: -pair[0].mean)


def describe_runs(groups: Sequence[Runs]) -> str:
    """Two sentences: which methods learned how many classes from how many images, and the split; memory, epochs and
    seeds."""
    first = groups[0].first
    names = listed([group.label for group in groups])
    count = NUMBERS[len(groups)].capitalize() if len(groups) < len(NUMBERS) else str(len(groups))
    methods = names if len(groups) == 1 else f"{count} methods ({names})"
    classes = f"the {len(first.metrics['classes'])} classes of {data_title(first.settings)}"
    train, test = (
        max(sum(counts.get(part, 0) for counts in group.first.images.values()) for group in groups)
        for part in ("train", "test")
    )
    training = f"{train:,} training and " if train else ""  # not known of imported predictions
    sizes = either(group.first.settings["data"].get("size") for group in groups)
    pixels = f" of {sizes} pixels" if sizes else ""
    split = either(split_description(group.first.settings) for group in groups)
    seeds = sorted({seed for group in groups for seed in group.seeds})
    plural = "seed" if len(seeds) == 1 else "seeds"
    return (
        f"{methods} learned {classes}{_tasks(groups)}, with {training}{test:,} test images{pixels}, "
        f"split {split}. {_memory(groups)}{_epochs(groups)}; {plural} {listed(list(map(str, seeds)))}."
    )


def _tasks(groups: Sequence[Runs]) -> str:
    sizes = [group.first.metrics["task_sizes"] for group in groups if group.incremental]
    if not sizes:
        return " all at once"
    if all(each == sizes[0] for each in sizes):
        tasks = f" in {len(sizes[0])} tasks of {listed(list(map(str, sizes[0])))} classes"
    else:
        tasks = f" in {either(len(each) for each in sizes)} tasks"
    at_once = [group.label for group in groups if not group.incremental]
    return tasks + (f" ({listed(at_once)}: all at once)" if at_once else "")


def _memory(groups: Sequence[Runs]) -> str:
    keeping = [group.first.settings.get("memory", {}) for group in groups if group.first.exemplars]
    limits = [
        f"{sizes} images {words}"
        for key, words in (("per_class", "per class"), ("total", "in all"))
        if (sizes := either(memory.get(key) for memory in keeping))
    ]
    if not limits:
        if any(budget(group.first)["exemplars"] == UNKNOWN for group in groups):
            return "Whether images were kept between tasks is not known"
        return "No images were kept between tasks"
    if len(keeping) == len(groups):
        return f"At most {' or '.join(limits)} were kept as exemplars"
    return f"Methods with a memory kept at most {' or '.join(limits)} as exemplars"


def _epochs(groups: Sequence[Runs]) -> str:
    """Epochs as they were run: a method may train a task in several phases, or by a schedule of its own."""
    events = [event for group in groups for event in group.first.events_of("epoch")]
    epochs = either(event.get("epochs") for event in events)
    phases = {(event["task"], event.get("phase")) for event in events}
    each = "task" if len(phases) == len({task for task, _ in phases}) else "phase of a task"
    return f"; {epochs} epochs per {each}" if epochs else ""


def findings(groups: Sequence[Runs], ranked: Ranking | None, *, rank_anyway: bool = False) -> list[str]:
    """The result in sentences, as strong as the number of seeds and test images allows."""
    learners = [group for group in groups if group.incremental]
    accuracy = _values(learners, "acc_last", PERCENT)
    at_once = _values([group for group in groups if not group.incremental], "acc_last", PERCENT)
    forgetting = _values(learners, "af")
    if not accuracy:
        accuracies = f"Trained on all classes at once, the accuracy is {at_once}."
    else:
        end = f"; trained on all classes at once, {at_once}" if at_once else ""
        accuracies = f"After the last task, the accuracy is {accuracy}{end}."
    sentences = [
        accuracies,
        _lead(learners, ranked, rank_anyway),
        significant_leads(ranked) if ranked else "",
        f"Average forgetting, in points: {forgetting}." if forgetting else "",
        _noise(groups, ranked),
        other_metrics(ranked) if ranked else "",
    ]
    return [sentence for sentence in sentences if sentence]


def _values(groups: Sequence[Runs], name: str, unit: str = "") -> str:
    """The value of each method; of many methods the lowest and the highest. Empty where there is none."""
    known = _highest_first(groups, name)
    texts = {group.label: f"{value.mean:.1f}{unit} ({group.label})" for value, group in known}
    if len(texts) > MOST_NAMED:
        *_, lowest = texts.values()
        return f"between {lowest} and {next(iter(texts.values()))}"
    return listed([texts[group.label] for group in groups if group.label in texts]) if texts else ""


def _lead(learners: Sequence[Runs], ranked: Ranking | None, rank_anyway: bool = False) -> str:
    if len(order := _highest_first(learners, "acc_last")) < 2:
        return ""
    if not rank_anyway and (reason := budgets_of(learners).reason):
        return f"{reason[0].upper()}{reason[1:]}, so the methods are not ranked."
    (best, first), (next_best, second) = order[:2]
    gap = best.mean - next_best.mean
    wider = max(best.deviation or 0.0, next_best.deviation or 0.0)
    if round(gap, 1) == 0:
        return f"{first.label} and {second.label} have the same accuracy."
    within = f", which is within the spread over seeds (± {wider:.1f})" if gap < wider else ""
    if ranked is not None:
        within = _significance(ranked)
    return f"{first.label} is {gap:.1f} points ahead of {second.label}{within}."


def _significance(ranked: Ranking) -> str:
    """Whether the lead is significant, and its interval. The verdict is corrected for all comparisons of the page and
    the interval is not, so where the two disagree both are given with what they are."""
    nearest = ranked.of("acc_last")[0]  # the runner-up minus the best
    high, low = (f"{round(-end, 1) + 0.0:.1f}" for end in nearest.interval)
    if nearest.verdict != NOT_SIGNIFICANT:
        return f" (95{PERCENT} interval of the paired difference: {low} to {high})"
    if nearest.interval[0] <= 0 <= nearest.interval[1]:
        return f", which is not significant (95{PERCENT} interval of the paired difference: {low} to {high})"
    return (
        f", which is not significant after correction for {len(ranked.differences)} comparisons: "
        f"p = {nearest.adjusted:.2g} (95{PERCENT} interval of the paired difference of this pair alone: {low} to "
        f"{high})"
    )


def significant_leads(ranked: Ranking) -> str:
    """Of more than two methods: which the best leads significantly, and which are better in another metric."""
    others = ranked.of("acc_last")
    if len(others) < 2:
        return ""
    best = ranked.best.label
    behind = [one.group.label for one in others if one.verdict == "worse"]
    near = [one.group.label for one in others if one.verdict == NOT_SIGNIFICANT]
    if not behind:
        sentences = [f"The lead of {best} in accuracy over the other methods is not significant."]
    else:
        sentences = [f"After the last task, {best} is significantly more accurate than {listed(behind)}."]
        sentences += [f"Its lead over {listed(near)} is not significant."] if near else []
    better = [f"{one.group.label} ({TITLES[one.metric]})" for one in ranked.differences if one.verdict == "better"]
    if better:
        sentences.append(f"Significantly better than {best} in another metric: {listed(better)}.")
    return " ".join(sentences)


def other_metrics(ranked: Ranking) -> str:
    """Of two methods: the metrics besides accuracy in which they differ significantly."""
    if len(others := ranked.of("acc_last")) != 1:
        return ""
    best, other = ranked.best.label, others[0].group.label
    sentences = []
    for verdict, ahead, behind in (("worse", best, other), ("better", other, best)):
        titles = [
            TITLES[one.metric] for one in ranked.differences if one.verdict == verdict and one.metric != "acc_last"
        ]
        if titles:
            sentences.append(f"{ahead} is significantly better than {behind} in {listed(titles)}.")
    return " ".join(sentences)


def _noise(groups: Sequence[Runs], ranked: Ranking | None) -> str:
    if min(len(group.seeds) for group in groups) > 1:
        return "Values are means over the seeds; ± is the sample standard deviation."
    n = sum(map(sum, groups[0].first.metrics[HEAD]["confusion"]))
    shares = [value.mean / 100 for value, _ in _highest_first(groups, "acc_last")]
    error = 100 * max(math.sqrt(share * (1 - share) / n) for share in shares)
    seeds = "variation between seeds is not included" if ranked else "differences of a few points may be noise"
    images = f"With {n:,} test images, the standard error of an accuracy is up to {error:.1f} points."
    return f"One seed only: {seeds}. {images}"
