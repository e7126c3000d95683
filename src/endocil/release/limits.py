"""Which limits the rules of a gate set, and the figures of a comparison that they are about."""

from collections.abc import Iterator
from dataclasses import dataclass

from endocil.errors import EndocilError
from endocil.release.comparing import ClassChange, Comparison
from endocil.release.intervals import Figure
from endocil.release.rules import ClassRules, Refuse, Rules

QUANTITIES = {  # what a key limits, in words
    "smallest_sensitivity": "sensitivity",
    "smallest_specificity": "specificity",
    "largest_loss_of_sensitivity": "loss of sensitivity",
    "largest_loss_of_specificity": "loss of specificity",
    "largest_loss_of_accuracy": "loss of accuracy",
    "largest_loss_of_macro_f1": "loss of macro F1",
    "largest_share_of_negative_flips": "share of negative flips",
    "largest_calibration_error": "calibration error",
    "largest_rise_of_calibration_error": "rise of the calibration error",
    "largest_share_of_flags": "share of images flagged as unlike anything learned",
    "smallest_number": "test images",
    "unknown_classes": "images of classes that neither version knows",
    "unreadable": "test images that cannot be read",
    "inside_a_bundle": "test images that lie inside a bundle",
}


@dataclass(frozen=True)
class Limit:
    """One limit to be held against one figure."""

    section: str
    key: str
    about: str
    limit: float
    figure: Figure | None
    refuse: Refuse


def limits_of(rules: Rules, comparison: Comparison) -> list[Limit]:
    """All of them; rules about classes that nobody knows are refused."""
    _refuse_strange_classes(rules, comparison)
    return [*_class_limits(rules, comparison), *_overall_limits(rules, comparison)]


def _refuse_strange_classes(rules: Rules, comparison: Comparison) -> None:
    status = {each.name: each.status for each in comparison.classes}
    for name, own in rules.class_.items():
        if name not in status:
            known = ", ".join(list(status)[:12])
            raise EndocilError(
                f"the rules name the class '{name}', which neither version knows; known: {known}"
            )
        lost = [key for key, value in own if key.startswith("largest_loss") and value is not None]
        if status[name] == "new" and lost:
            raise EndocilError(
                f"the rules limit {lost[0]} of '{name}', which the old version does not know, so nothing can be "
                f"lost; give smallest_sensitivity or smallest_specificity"
            )


def _class_limits(rules: Rules, comparison: Comparison) -> Iterator[Limit]:
    """A limit for a named class goes before the one for every class."""
    for each in comparison.classes:
        common = "new_classes" if each.status == "new" else "every_class"
        general, own = getattr(rules, common), rules.class_.get(each.name, ClassRules())
        for key in QUANTITIES:
            for section, source in ((f'class."{each.name}"', own), (common, general)):
                if (limit := getattr(source, key, None)) is not None:
                    refuse = source.refuse or rules.refuse
                    yield Limit(section, key, each.name, limit, _class_figure(each, key), refuse)
                    break


def _class_figure(each: ClassChange, key: str) -> Figure | None:
    """Specificity is that on images of the classes the old version knows; of a new class, on all images."""
    specificity = each.specificity_all if each.status == "new" else each.specificity
    pair = each.sensitivity if key.endswith("sensitivity") else specificity
    return pair.change if key.startswith("largest_loss") else pair.new


def _overall_limits(rules: Rules, comparison: Comparison) -> Iterator[Limit]:
    flags = next((each.new for each in comparison.flags if each.where == "known"), None)
    figures: dict[str, Figure | None] = {
        "largest_loss_of_accuracy": comparison.accuracy.change,
        "largest_loss_of_macro_f1": comparison.macro_f1.change,
        "largest_share_of_negative_flips": comparison.negative,
        "largest_calibration_error": comparison.calibration_all,
        "largest_rise_of_calibration_error": comparison.calibration.change,
        "largest_share_of_flags": flags,
    }
    for key, figure in figures.items():
        if (limit := getattr(rules.overall, key)) is not None:
            yield Limit("overall", key, "", limit, figure, rules.overall.refuse or rules.refuse)
