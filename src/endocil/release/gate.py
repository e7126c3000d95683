"""May the new version take the old one's place? Rules and figures to checks that pass or fail, and a verdict.

A limit is held against a whole interval. `unless_shown_harmless`: the interval must lie on the good side, so that too
few images refuse (a test of non-inferiority). `if_shown_harmful`: only an interval wholly on the bad side refuses."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from endocil.release.comparing import Comparison
from endocil.release.intervals import Change, Figure, Interval, Share
from endocil.release.limits import QUANTITIES, Limit, limits_of
from endocil.release.rules import Refuse, Rules
from endocil.report.markup import number

NAMED = 3  # classes in a line of the verdict


@dataclass(frozen=True)
class Check:
    section: str
    key: str
    about: str  # the class; "" for all images
    limit: float
    value: float | None
    interval: Interval | None  # None: a count, which is what it is
    level: float | None  # of the interval
    images: int
    refuse: Refuse | None
    passed: bool
    harm_shown: bool  # the whole interval lies on the bad side
    said: str  # the numbers, and why


@dataclass(frozen=True)
class Verdict:
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def line(self) -> str:
        n, failed = len(self.checks), [check for check in self.checks if not check.passed]
        if not failed:
            return f"PASS: {_checks(n)} of the rules {'holds' if n == 1 else 'hold'}."
        parts = []
        for key, same in groupby(sorted(failed, key=_order), key=lambda check: check.key):
            names = [check.about for check in same if check.about]
            more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
            parts.append(QUANTITIES[key] + (f" ({', '.join(names[:NAMED])}{more})" if names else ""))
        fail = "fails" if len(failed) == 1 else "fail"
        shown = sum(check.harm_shown for check in failed)
        harm = f" Harm is shown in {shown:,} of them." if shown else ""
        return f"REFUSED: {len(failed):,} of {_checks(n)} {fail}: {'; '.join(parts)}.{harm}"


def _order(check: Check) -> int:
    return list(QUANTITIES).index(check.key)


def _checks(n: int) -> str:
    return f"{n:,} check{'' if n == 1 else 's'}"


def judge(rules: Rules, comparison: Comparison, unreadable: int = 0, inside: int = 0) -> Verdict:
    """Every check that the rules ask for; `unreadable` and `inside` are numbers of test images that cannot
    be read, and that lie inside a bundle."""
    limits = limits_of(rules, comparison)
    return Verdict(
        (
            *_image_checks(rules, comparison, {"unreadable": unreadable, "inside_a_bundle": inside}),
            *(_checked(limit, _level(rules, limit, limits)) for limit in limits),
        )
    )


def _level(rules: Rules, limit: Limit, limits: Sequence[Limit]) -> float:
    """Bonferroni: the chance of an error is shared by the classes that a key is about."""
    alike = sum(other.key == limit.key for other in limits) if rules.correction == "bonferroni" else 1
    return 1 - (1 - rules.confidence) / alike


def _checked(limit: Limit, level: float) -> Check:
    figure, key = limit.figure, limit.key
    n = figure.n if figure else 0
    if figure is None or not n:
        passed = limit.refuse == "if_shown_harmful"
        why = "the new version has no such flag" if key == "largest_share_of_flags" else "no test images"
        return _check(limit, None, None, level, 0, passed, False, f"{why}, so nothing is shown")
    value, (low, high) = figure.value, figure.interval(level)
    if key.startswith("largest_loss"):
        value, low, high = -value, -high, -low
    smallest = key.startswith("smallest")
    good = low >= limit.limit if smallest else high <= limit.limit
    bad = high < limit.limit if smallest else low > limit.limit
    passed = good if limit.refuse == "unless_shown_harmless" else not bad
    said = _said(limit, figure, level, (value, low, high), good, bad)
    return _check(limit, value, (low, high), level, n, passed, bad, said)


def _check(
    limit: Limit,
    value: float | None,
    interval: Interval | None,
    level: float,
    n: int,
    passed: bool,
    harm_shown: bool,
    said: str,
) -> Check:
    rule = (limit.section, limit.key, limit.about, limit.limit)
    return Check(*rule, value, interval, level, n, limit.refuse, passed, harm_shown, said)


def _said(
    limit: Limit, figure: Figure, level: float, numbers: tuple[float, float, float], good: bool, bad: bool
) -> str:
    """What is shown, what is not, and how many images would show it."""
    value, low, high = numbers
    smallest = limit.key.startswith("smallest")
    wanted = f"{'at least' if smallest else 'at most'} {limit.limit:g}"
    told = f"{number(value)} ({number(low)} to {number(high)}) on {figure.n:,} images"
    if good:
        return f"{told}: shown to be {wanted}"
    if bad:
        return f"{told}: shown to be {'below' if smallest else 'above'} {limit.limit:g}"
    if (value < limit.limit) if smallest else (value > limit.limit):
        return f"{told}: is not {wanted}, which may be chance"
    needed = figure.needed(limit.limit, level) if isinstance(figure, (Share, Change)) else None
    more = f"; if more images said the same, about {needed:,} would show it" if needed else ""
    return f"{told}: not shown to be {wanted}{more}"


def _image_checks(rules: Rules, comparison: Comparison, left_out: dict[str, int]) -> Iterator[Check]:
    counts = {"unknown_classes": len(comparison.versions.left_out), **left_out}
    for key, n in counts.items():
        if getattr(rules.images, key) == "refuse":
            yield _counted(key, "", 0, n, n == 0)
    if (smallest := rules.images.smallest_number) is not None:
        for each in comparison.classes:
            yield _counted("smallest_number", each.name, smallest, each.images, each.images >= smallest)


def _counted(key: str, about: str, limit: int, n: int, passed: bool) -> Check:
    wanted = f"at least {limit:,}" if key == "smallest_number" else "none"
    return Check(
        "images", key, about, limit, n, None, None, n, None, passed, False, f"{n:,}; wanted: {wanted}"
    )
