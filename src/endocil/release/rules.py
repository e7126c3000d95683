"""The rules of a gate (gate.toml): strict, so that a misspelt rule is refused and never silently absent."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from endocil.errors import EndocilError
from endocil.opening import read_whole

Refuse = Literal["unless_shown_harmless", "if_shown_harmful"]
Otherwise = Literal["refuse", "leave_out"]
Percent = Annotated[float, Field(ge=0, le=100)]  # or points of it


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ImageRules(_Section):
    """What the test images must be."""

    unknown_classes: Otherwise = "refuse"  # of classes that neither version knows
    unreadable: Otherwise = "refuse"
    inside_a_bundle: Otherwise = "refuse"  # that a version has learned from or was calibrated on
    smallest_number: int | None = Field(None, ge=1)  # of each class


class NewClassRules(_Section):
    refuse: Refuse | None = None
    smallest_sensitivity: Percent | None = None
    smallest_specificity: Percent | None = None


class ClassRules(NewClassRules):
    largest_loss_of_sensitivity: Percent | None = None
    largest_loss_of_specificity: Percent | None = None


class OverallRules(_Section):
    refuse: Refuse | None = None
    largest_loss_of_accuracy: Percent | None = None
    largest_loss_of_macro_f1: Percent | None = None
    largest_share_of_negative_flips: Percent | None = None
    largest_calibration_error: Percent | None = None
    largest_rise_of_calibration_error: Percent | None = None
    largest_share_of_flags: Percent | None = None


class Rules(_Section):
    confidence: float = Field(0.95, gt=0.5, lt=1)
    correction: Literal["none", "bonferroni"] = "none"
    refuse: Refuse = "unless_shown_harmless"  # in each section that does not say otherwise
    images: ImageRules = ImageRules()
    every_class: ClassRules = ClassRules()
    new_classes: NewClassRules = NewClassRules()
    class_: dict[str, ClassRules] = Field({}, alias="class")
    overall: OverallRules = OverallRules()

    @property
    def limits(self) -> int:
        """How many limits are set."""
        sections = (self.images, self.every_class, self.new_classes, self.overall, *self.class_.values())
        return sum(isinstance(value, (int, float)) for section in sections for _, value in section)


def read_rules(path: Path) -> Rules:
    try:
        values = tomllib.loads(read_whole(path).decode("utf-8"))
    except OSError as error:
        raise EndocilError(f"cannot read the rules {path}: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise EndocilError(f"the rules {path} are no text in UTF-8; save the file as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise EndocilError(f"the rules {path} are not valid TOML: {error}") from error
    try:
        rules = Rules.model_validate(values)
    except ValidationError as error:
        found = "; ".join(_problem(each) for each in error.errors()[:3])
        raise EndocilError(f"the rules {path}: {found}") from None
    if not rules.limits:
        known = ", ".join(sorted(ClassRules.model_fields.keys() - {"refuse"}))
        raise EndocilError(
            f"the rules {path} set no limit, so every release would pass; set one, such as one of {known} in "
            f"[every_class]"
        )
    return rules


def _problem(found: Any) -> str:
    place = [str(part) for part in found["loc"]]
    if found["type"] == "extra_forbidden":
        sections: dict[str, type[BaseModel]] = {
            "images": ImageRules,
            "every_class": ClassRules,
            "new_classes": NewClassRules,
            "class": ClassRules,
            "overall": OverallRules,
        }
        section: type[BaseModel] = Rules if len(place) == 1 else sections[place[0]]
        known = ", ".join(sorted(field.alias or name for name, field in section.model_fields.items()))
        inside = f" in [{'.'.join(place[:-1])}]" if len(place) > 1 else ""
        return f"unknown key '{place[-1]}'{inside}; known: {known}"
    message = found["msg"][0].lower() + found["msg"][1:]
    return f"{'.'.join(place)}: {message}, got {str(found['input'])[:80]!r}"
