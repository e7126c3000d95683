"""May the new version replace the old one? Rules (gate.toml) and the figures of a comparison give checks and a verdict.

The rules are read strictly: a misspelt rule is an error and never silently absent.
"""

import hashlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from endocil.errors import SettingsError
from endocil.html.markup import number
from endocil.io.files import parse_toml, read_whole
from endocil.metrics.intervals import Change, Figure, Interval, Share
from endocil.model.file import read_model_file, write_model_file
from endocil.model.manifest import GateVerdict
from endocil.release.compare import Comparison
from endocil.release.versions import Evaluation

MAX_NAMED = 3  # classes in a line of the verdict

Refuse = Literal["unless_shown_harmless", "if_shown_harmful"]
Action = Literal["refuse", "leave_out"]
Percent = Annotated[float, Field(ge=0, le=100)]  # or points of it


class _Section(BaseModel):
    """The title of a rule is the quantity that it limits."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ImageRules(_Section):
    """Of the test images."""

    smallest_number: int | None = Field(None, ge=1, title="test images")  # of each class
    unknown_classes: Action = Field("refuse", title="images of classes that neither version knows")
    unreadable: Action = Field("refuse", title="test images that cannot be read")
    inside_a_model: Action = Field("refuse", title="test images that a model contains")  # learned or calibrated on


class NewClassRules(_Section):
    refuse: Refuse | None = None
    smallest_sensitivity: Percent | None = Field(None, title="sensitivity")
    smallest_specificity: Percent | None = Field(None, title="specificity")


class ClassRules(NewClassRules):
    largest_loss_of_sensitivity: Percent | None = Field(None, title="loss of sensitivity")
    largest_loss_of_specificity: Percent | None = Field(None, title="loss of specificity")


class SourceRules(_Section):
    """Of the images of one device or centre."""

    refuse: Refuse | None = None
    smallest_accuracy: Percent | None = Field(None, title="accuracy")
    largest_loss_of_accuracy: Percent | None = Field(None, title="loss of accuracy")


class OverallRules(_Section):
    refuse: Refuse | None = None
    largest_loss_of_accuracy: Percent | None = Field(None, title="loss of accuracy")
    largest_loss_of_macro_f1: Percent | None = Field(None, title="loss of macro F1")
    largest_share_of_negative_flips: Percent | None = Field(None, title="share of negative flips")
    largest_calibration_error: Percent | None = Field(None, title="calibration error")
    largest_rise_of_calibration_error: Percent | None = Field(None, title="rise of the calibration error")
    largest_share_of_flags: Percent | None = Field(None, title="share of images flagged as out of distribution")


QUANTITIES = {  # what a rule limits
    name: field.title
    for section in (ClassRules, SourceRules, OverallRules, ImageRules)
    for name, field in section.model_fields.items()
    if field.title
}


class Rules(_Section):
    confidence: float = Field(0.95, gt=0.5, lt=1)
    correction: Literal["none", "bonferroni"] = "none"
    refuse: Refuse = "unless_shown_harmless"  # in each section that does not say otherwise
    images: ImageRules = ImageRules()
    every_class: ClassRules = ClassRules()
    new_classes: NewClassRules = NewClassRules()
    class_: dict[str, ClassRules] = Field({}, alias="class")
    every_source: SourceRules = SourceRules()
    source: dict[str, SourceRules] = {}
    overall: OverallRules = OverallRules()

    @property
    def limits(self) -> int:
        """How many limits are set."""
        sections: list[_Section] = [self.images, self.every_class, self.new_classes, self.every_source, self.overall]
        sections += [*self.class_.values(), *self.source.values()]
        return sum(isinstance(value, (int, float)) for section in sections for _, value in section)


def read_rules(path: Path) -> Rules:
    try:
        values = parse_toml(read_whole(path).decode("utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read the rules {path}: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise SettingsError(f"the rules {path} are not UTF-8 text; save the file as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"the rules {path} are not valid TOML: {error}") from error
    try:
        rules = Rules.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(_problem(problem) for problem in error.errors()[:3])
        raise SettingsError(f"the rules {path}: {problems}") from None
    if not rules.limits:
        known = ", ".join(sorted(ClassRules.model_fields.keys() - {"refuse"}))
        raise SettingsError(
            f"the rules {path} set no limit, so every release would pass; set one, such as one of {known} in "
            f"[every_class]"
        )
    return rules


def _problem(error: Any) -> str:
    place = [str(part) for part in error["loc"]]
    if error["type"] == "extra_forbidden":
        section: type[BaseModel] = Rules
        if len(place) > 1:
            sections: dict[str, type[BaseModel]] = {name: type(value) for name, value in Rules() if name != "class_"}
            sections["source"] = SourceRules
            section = sections.get(place[0], ClassRules)
        known = ", ".join(sorted(field.alias or name for name, field in section.model_fields.items()))
        inside = f" in [{'.'.join(place[:-1])}]" if len(place) > 1 else ""
        return f"unknown key '{place[-1]}'{inside}; known: {known}"
    message = error["msg"][0].lower() + error["msg"][1:]
    return f"{'.'.join(place)}: {message}, got {str(error['input'])[:80]!r}"


@dataclass(frozen=True)
class Limit:
    """One limit and the figure it applies to."""

    section: str
    key: str
    about: str
    limit: float
    figure: Figure | None
    refuse: Refuse


def _class_limits(rules: Rules, comparison: Comparison) -> Iterator[Limit]:
    """The limit of a named class overrides that of every class; classes that neither version knows are errors.

    Specificity is that on images of the classes the old version knows; of a new class, on all images."""
    status = {each.name: each.status for each in comparison.classes}
    for name, own in rules.class_.items():
        if name not in status:
            known = ", ".join(list(status)[:12])
            raise SettingsError(f"the rules name the class '{name}', which neither version knows; known: {known}")
        losses = [key for key, value in own if key.startswith("largest_loss") and value is not None]
        if status[name] == "new" and losses:
            raise SettingsError(
                f"the rules limit {losses[0]} of '{name}', which the old version does not know, so nothing can be "
                f"lost; give smallest_sensitivity or smallest_specificity"
            )
    for each in comparison.classes:
        common = "new_classes" if each.status == "new" else "every_class"
        general, own = getattr(rules, common), rules.class_.get(each.name, ClassRules())
        specificity = each.specificity_all if each.status == "new" else each.specificity
        for key in QUANTITIES:
            pair = each.sensitivity if key.endswith("sensitivity") else specificity
            figure = pair.change if key.startswith("largest_loss") else pair.new
            for section, source in ((f'class."{each.name}"', own), (common, general)):
                if (limit := getattr(source, key, None)) is not None:
                    yield Limit(section, key, each.name, limit, figure, source.refuse or rules.refuse)
                    break


def _source_limits(rules: Rules, comparison: Comparison) -> Iterator[Limit]:
    """The limit of a named source overrides that of every source; one without test images is an error."""
    known = [each.name for each in comparison.sources]
    for name in rules.source:
        if name not in known:
            raise SettingsError(
                f"the rules name the source '{name}', of which there is no test image; "
                f"sources of the test images: {', '.join(known[:12]) or 'none is known'}"
            )
    for each in comparison.sources:
        own = rules.source.get(each.name, SourceRules())
        for key in ("smallest_accuracy", "largest_loss_of_accuracy"):
            figure: Figure | None = each.accuracy.change if key.startswith("largest_loss") else each.accuracy.new
            for section, rule in ((f'source."{each.name}"', own), ("every_source", rules.every_source)):
                if (limit := getattr(rule, key)) is not None:
                    yield Limit(section, key, each.name, limit, figure, rule.refuse or rules.refuse)
                    break


def _overall_limits(rules: Rules, comparison: Comparison) -> Iterator[Limit]:
    figures: dict[str, Figure | None] = {
        "largest_loss_of_accuracy": comparison.accuracy.change,
        "largest_loss_of_macro_f1": comparison.macro_f1.change,
        "largest_share_of_negative_flips": comparison.negative,
        "largest_calibration_error": comparison.calibration_all,
        "largest_rise_of_calibration_error": comparison.calibration.change,
        "largest_share_of_flags": next((each.new for each in comparison.flags if each.where == "known"), None),
    }
    for key, figure in figures.items():
        if (limit := getattr(rules.overall, key)) is not None:
            yield Limit("overall", key, "", limit, figure, rules.overall.refuse or rules.refuse)


@dataclass(frozen=True)
class Check:
    section: str
    key: str
    about: str  # the class; "" for all images
    limit: float
    value: float | None
    interval: Interval | None  # None: a count
    level: float | None  # of the interval
    images: int
    refuse: Refuse | None
    passed: bool
    harm_shown: bool  # the whole interval lies on the bad side
    explanation: str


@dataclass(frozen=True)
class Verdict:
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def line(self) -> str:
        n, failed = len(self.checks), [check for check in self.checks if not check.passed]
        checks = f"{n:,} check{'' if n == 1 else 's'}"
        if not failed:
            return f"PASS: {checks} of the rules {'holds' if n == 1 else 'hold'}."
        parts = []
        for key, quantity in QUANTITIES.items():
            names = [check.about for check in failed if check.key == key and check.about]
            more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
            if any(check.key == key for check in failed):
                parts.append(quantity + (f" ({', '.join(names[:MAX_NAMED])}{more})" if names else ""))
        fail = "fails" if len(failed) == 1 else "fail"
        harmful = sum(check.harm_shown for check in failed)
        harm = f" Harm is shown in {harmful:,} of them." if harmful else ""
        return f"REFUSED: {len(failed):,} of {checks} {fail}: {'; '.join(parts)}.{harm}"


def judge(rules: Rules, comparison: Comparison, unreadable: int = 0, inside: int = 0) -> Verdict:
    """Every check of the rules; `unreadable` and `inside` are numbers of test images that cannot be read, and that a
    model contains.

    Bonferroni: the chance of an error is divided by the number of classes and sources that have this limit."""
    checks = list(_image_checks(rules, comparison, {"unreadable": unreadable, "inside_a_model": inside}))
    limits = [
        *_class_limits(rules, comparison),
        *_source_limits(rules, comparison),
        *_overall_limits(rules, comparison),
    ]
    for limit in limits:
        n = sum(other.key == limit.key for other in limits) if rules.correction == "bonferroni" else 1
        checks.append(_check(limit, 1 - (1 - rules.confidence) / n))
    return Verdict(tuple(checks))


def _check(limit: Limit, level: float) -> Check:
    """With an explanation of what is shown, what is not, and how many images would show it."""
    figure, key = limit.figure, limit.key
    rule = (limit.section, key, limit.about, limit.limit)
    if figure is None or not figure.n:
        passed = limit.refuse == "if_shown_harmful"
        reason = "the new version has no such flag" if key == "largest_share_of_flags" else "no test images"
        text = f"{reason}, so nothing is shown"
        return Check(*rule, None, None, level, 0, limit.refuse, passed, False, text)
    value, (low, high) = figure.value, figure.interval(level)
    if key.startswith("largest_loss"):
        value, low, high = -value, -high, -low
    smallest = key.startswith("smallest")
    good = low >= limit.limit if smallest else high <= limit.limit
    bad = high < limit.limit if smallest else low > limit.limit
    passed = good if limit.refuse == "unless_shown_harmless" else not bad
    bound = f"{'at least' if smallest else 'at most'} {limit.limit:g}"
    if good:
        shown = f"shown to be {bound}"
    elif bad:
        shown = f"shown to be {'below' if smallest else 'above'} {limit.limit:g}"
    elif (value < limit.limit) if smallest else (value > limit.limit):
        shown = f"is not {bound}, which may be chance"
    else:
        needed = figure.needed(limit.limit, level) if isinstance(figure, (Share, Change)) else None
        more = f"; about {needed:,} images with the same result would show it" if needed else ""
        shown = f"not shown to be {bound}{more}"
    text = f"{number(value)} ({number(low)} to {number(high)}) on {figure.n:,} images: {shown}"
    return Check(*rule, value, (low, high), level, figure.n, limit.refuse, passed, bad, text)


def _image_checks(rules: Rules, comparison: Comparison, left_out: dict[str, int]) -> Iterator[Check]:
    def check(key: str, about: str, limit: int, n: int, passed: bool, expected: str) -> Check:
        text = f"{n:,}; expected {expected}"
        return Check("images", key, about, limit, n, None, None, n, None, passed, False, text)

    for key, n in {"unknown_classes": len(comparison.versions.left_out), **left_out}.items():
        if getattr(rules.images, key) == "refuse":
            yield check(key, "", 0, n, n == 0, "none")
    if (smallest := rules.images.smallest_number) is not None:
        for each in comparison.classes:
            passed = each.images >= smallest
            yield check("smallest_number", each.name, smallest, each.images, passed, f"at least {smallest:,}")


def verdict_for_model(verdict: Verdict, evaluation: Evaluation, rules: Path) -> GateVerdict:
    """The verdict as the model file of the new version keeps it."""
    old, new = evaluation.old, evaluation.new
    return GateVerdict(
        passed=verdict.passed,
        line=verdict.line,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        judged=new["digest"],
        old=old["digest"],
        old_title=old["title"],
        rules=rules.name,
        rules_digest=hashlib.sha256(read_whole(rules)).hexdigest(),
        test=evaluation.test,
        images=len(evaluation.versions.tested.images),
    )


def write_with_verdict(model: Path, verdict: GateVerdict, output: Path) -> str:
    """A copy of the model file with the verdict inside, and its digest. Nothing else of the model changes."""
    content = read_model_file(model)
    if content.digest != verdict.judged:
        raise SettingsError(f"{model} has changed since it was judged; compare it again")
    manifest = content.manifest.model_copy(update={"gate": verdict})
    return write_model_file(output, replace(content, manifest=manifest))
