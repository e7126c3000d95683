"""Rules are read strictly, and each refuses when it should and only then."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from endocil.errors import EndocilError
from endocil.release.compare import Comparison, compare
from endocil.release.gate import Check, Rules, judge, read_rules
from endocil.release.versions import VersionPredictions, align

ROOT = Path(__file__).parents[2]


def _comparison(lost: int = 0, gained: int = 0, n: int = 100, *, new_right: int = 40, flags: bool = True) -> Comparison:
    """n images of a, of which the new version loses and gains some, n of b, which both know, 50 of a new class c."""
    truth = ["a"] * n + ["b"] * n + ["c"] * 50
    old = ["b"] * gained + ["a"] * (n - gained) + ["b"] * n + ["a"] * 50
    new = ["a"] * (n - lost) + ["b"] * lost + ["b"] * n + ["c"] * new_right + ["a"] * (50 - new_right)
    test = (tuple(map(str, range(len(truth)))), tuple(truth), ("",) * len(truth))
    none = np.zeros(len(truth), dtype=bool) if flags else None
    said = [
        VersionPredictions(classes, np.array([classes.index(name) for name in names]), np.full(len(truth), 0.9), none)
        for classes, names in ((("a", "b"), old), (("a", "b", "c"), new))
    ]
    return compare(align(*test, *said), resamples=200)


def _checks(rules: dict[str, Any], comparison: Comparison, **counts: int) -> dict[tuple[str, str], Check]:
    verdict = judge(Rules.model_validate(rules), comparison, **counts)
    return {(check.key, check.about): check for check in verdict.checks if check.section != "images"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[every_clas]\nx = 1", "unknown key 'every_clas'; known: class, confidence, correction, every_class"),
        (
            "[every_class]\nlargest_loss_of_sensitivty = 5",
            "unknown key 'largest_loss_of_sensitivty' in .every_class.; known: largest_loss_of_sensitivity",
        ),
        ('[class."polyp"]\nlargest = 5', "unknown key 'largest' in .class.polyp.; known: largest_loss_of"),
        ("[new_classes]\nlargest_loss_of_sensitivity = 5", "known: refuse, smallest_sensitivity, smallest_spec"),
        ("[overall]\nlargest_loss_of_accuracy = 101", "overall.largest_loss_of_accuracy: .* less than or equal to 100"),
        ("[overall]\nlargest_loss_of_accuracy = nan", "largest_loss_of_accuracy: .* finite"),
        ('[overall]\nlargest_loss_of_accuracy = "5"', "largest_loss_of_accuracy: .* valid number, got '5'"),
        ("[overall]\nlargest_loss_of_accuracy = true", "largest_loss_of_accuracy: .* valid number"),
        ('refuse = "sometimes"', "refuse: .*'unless_shown_harmless' or 'if_shown_harmful', got 'sometimes'"),
        ("confidence = 95", "confidence: .* less than 1"),
        ("confidence = 0.95", "set no limit, so every release would pass"),
        ("", "set no limit"),
        ("[every_class", "not valid TOML"),
    ],
)
def test_rules_that_are_not_meant_so_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "gate.toml").write_text(text)
    with pytest.raises(EndocilError, match=said):
        read_rules(tmp_path / "gate.toml")


def test_rules_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EndocilError, match=r"cannot read the rules .*none\.toml"):
        read_rules(tmp_path / "none.toml")
    (tmp_path / "gate.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(EndocilError, match="not UTF-8 text"):
        read_rules(tmp_path / "gate.toml")


def test_the_example_is_a_gate_by_non_inferiority() -> None:
    rules = read_rules(ROOT / "docs" / "gate.toml")
    assert rules.refuse == "unless_shown_harmless"
    assert rules.every_class.largest_loss_of_sensitivity is not None


def test_no_loss_is_harmless_only_where_enough_images_show_it() -> None:
    rules = {"every_class": {"largest_loss_of_sensitivity": 5.0}}
    few = _checks(rules, _comparison(n=40))["largest_loss_of_sensitivity", "a"]
    assert not few.passed
    assert few.explanation == (
        "0.0 (-8.8 to 8.8) on 40 images: not shown to be at most 5; about 73 images with the same result would show it"
    )
    assert _checks(rules, _comparison(n=100))["largest_loss_of_sensitivity", "a"].passed
    lenient = {"refuse": "if_shown_harmful", **rules}
    assert _checks(lenient, _comparison(n=40))["largest_loss_of_sensitivity", "a"].passed


@pytest.mark.parametrize(
    ("lost", "harmless", "harmful", "said"),
    [
        (0, True, False, "shown to be at most 15"),
        (11, False, False, "not shown to be at most 15"),
        (17, False, False, "is not at most 15, which may be chance"),
        (40, False, True, "shown to be above 15"),
    ],
)
def test_the_two_kinds_differ_where_nothing_is_shown(lost: int, harmless: bool, harmful: bool, said: str) -> None:
    comparison = _comparison(lost)
    for kind, passed in (("unless_shown_harmless", harmless), ("if_shown_harmful", not harmful)):
        rules = {"every_class": {"largest_loss_of_sensitivity": 15, "refuse": kind}}
        check = _checks(rules, comparison)["largest_loss_of_sensitivity", "a"]
        assert check.passed == passed
        assert check.value == lost
        assert check.harm_shown == harmful
        assert said in check.explanation


def test_a_named_class_has_its_own_limit_and_keeps_the_others() -> None:
    rules = {
        "every_class": {"largest_loss_of_sensitivity": 1, "largest_loss_of_specificity": 10},
        "class": {"a": {"largest_loss_of_sensitivity": 30, "refuse": "if_shown_harmful"}},
    }
    found = _checks(rules, _comparison(20))
    own = found["largest_loss_of_sensitivity", "a"]
    assert (own.limit, own.section, own.refuse, own.passed) == (30, 'class."a"', "if_shown_harmful", True)
    assert found["largest_loss_of_specificity", "a"].refuse == "unless_shown_harmless"
    assert found["largest_loss_of_sensitivity", "b"].limit == 1
    assert ("largest_loss_of_sensitivity", "c") not in found


def test_new_classes_must_be_known_well_enough() -> None:
    rules = {"new_classes": {"smallest_sensitivity": 60, "smallest_specificity": 90}}
    good = _checks(rules, _comparison(new_right=45))
    assert {key: check.passed for key, check in good.items()} == {
        ("smallest_sensitivity", "c"): True,
        ("smallest_specificity", "c"): True,
    }
    assert not _checks(rules, _comparison(new_right=33))["smallest_sensitivity", "c"].passed


def test_rules_about_strange_classes_are_refused() -> None:
    with pytest.raises(EndocilError, match="the class 'q', which neither version knows; known: a, b, c"):
        _checks({"class": {"q": {"smallest_sensitivity": 5}}}, _comparison())
    with pytest.raises(EndocilError, match="largest_loss_of_sensitivity of 'c', which the old version does not know"):
        _checks({"class": {"c": {"largest_loss_of_sensitivity": 5}}}, _comparison())


def test_bonferroni_widens_by_the_number_of_classes() -> None:
    rules = {"every_class": {"largest_loss_of_sensitivity": 20}, "overall": {"largest_loss_of_accuracy": 20}}
    plain, corrected = (
        _checks({"correction": correction, **rules}, _comparison(5)) for correction in ("none", "bonferroni")
    )
    one, two = plain["largest_loss_of_sensitivity", "a"], corrected["largest_loss_of_sensitivity", "a"]
    assert (one.level, two.level) == pytest.approx((0.95, 0.975))
    assert one.interval is not None
    assert two.interval is not None
    assert two.interval[1] > one.interval[1]
    assert corrected["largest_loss_of_accuracy", ""].level == pytest.approx(0.95)


def test_every_rule_of_all_images_passes_and_fails() -> None:
    keys = (
        "largest_loss_of_accuracy",
        "largest_loss_of_macro_f1",
        "largest_share_of_negative_flips",
        "largest_calibration_error",
        "largest_rise_of_calibration_error",
        "largest_share_of_flags",
    )
    harmed = _comparison(60, new_right=0)
    for limit, passed in ((100, True), (0, False)):
        found = _checks({"overall": dict.fromkeys(keys, limit)}, harmed)
        assert [check.key for check in found.values()] == list(keys)
        assert all(check.passed == passed for check in found.values()), limit


def test_a_version_without_flags_has_shown_nothing() -> None:
    comparison = _comparison(flags=False)
    for kind, passed in (("unless_shown_harmless", False), ("if_shown_harmful", True)):
        rules = {"overall": {"largest_share_of_flags": 10, "refuse": kind}}
        check = _checks(rules, comparison)["largest_share_of_flags", ""]
        assert (check.passed, check.explanation) == (passed, "the new version has no such flag, so nothing is shown")


def test_images_that_are_no_test_refuse_unless_they_may_be_left_out() -> None:
    rules = {"overall": {"largest_loss_of_accuracy": 50}}
    assert judge(Rules.model_validate(rules), _comparison()).passed
    for counts in ({"unreadable": 1}, {"inside": 2}):
        refused = judge(Rules.model_validate(rules), _comparison(), **counts)
        assert not refused.passed
        assert refused.line.startswith("REFUSED: 1 of 4 checks fails: test images that ")
    may = {"images": {"unreadable": "leave_out", "inside_a_model": "leave_out"}, **rules}
    assert judge(Rules.model_validate(may), _comparison(), unreadable=3, inside=3).passed


def test_too_few_images_of_a_class_refuse() -> None:
    verdict = judge(Rules.model_validate({"images": {"smallest_number": 60}}), _comparison())
    failed = [check for check in verdict.checks if not check.passed]
    assert [(check.about, check.explanation) for check in failed] == [("c", "50; expected at least 60")]
    assert verdict.line == "REFUSED: 1 of 6 checks fails: test images (c)."


def test_the_verdict_is_one_plain_line() -> None:
    rules = {"every_class": {"largest_loss_of_sensitivity": 10}, "overall": {"largest_loss_of_accuracy": 5}}
    assert judge(Rules.model_validate(rules), _comparison()).line == "PASS: 6 checks of the rules hold."
    assert judge(Rules.model_validate(rules), _comparison(60)).line == (
        "REFUSED: 2 of 6 checks fail: loss of sensitivity (a); loss of accuracy. Harm is shown in 2 of them."
    )


def _of_two_centres(old_right: int, new_right: int) -> Comparison:
    """40 images of centre A that both get right, 40 of centre B of which each gets so many right."""
    truth, sources = ["a", "b"] * 40, ["A"] * 40 + ["B"] * 40
    none, said = np.zeros(80, dtype=bool), []
    for right in (old_right, new_right):
        predicted = np.array([(i % 2) if i < 40 + right else 1 - i % 2 for i in range(80)])
        said.append(VersionPredictions(("a", "b"), predicted, np.full(80, 0.9), none))
    return compare(align(tuple(map(str, range(80))), truth, ("",) * 80, *said, sources=sources), resamples=200)


def test_the_gate_can_ask_about_every_source_and_about_one() -> None:
    worse = _of_two_centres(40, 20)
    assert [(each.name, each.accuracy.change and each.accuracy.change.value) for each in worse.sources] == [
        ("A", 0.0),
        ("B", -50.0),
    ]
    rules: dict[str, Any] = {"refuse": "if_shown_harmful", "every_source": {"largest_loss_of_accuracy": 10.0}}
    checks = _checks(rules, worse)
    key = "largest_loss_of_accuracy"
    assert (checks[key, "A"].passed, checks[key, "B"].passed) == (True, False)
    assert checks[key, "B"].harm_shown
    own = _checks({**rules, "source": {"B": {key: 80.0, "smallest_accuracy": 60.0}}}, worse)
    assert (own[key, "B"].passed, own[key, "B"].section) == (True, 'source."B"')
    assert own["smallest_accuracy", "B"].value == 50.0
    assert "accuracy (B)" in judge(Rules.model_validate({"source": {"B": {"smallest_accuracy": 60.0}}}), worse).line


def test_a_rule_for_a_source_without_test_images_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EndocilError, match=r"the source 'C', of which there is no test image; sources .* A, B"):
        _checks({"source": {"C": {"smallest_accuracy": 60.0}}}, _of_two_centres(40, 40))
    (tmp_path / "gate.toml").write_text("[source.A]\nsmallest = 5")
    with pytest.raises(EndocilError, match=r"unknown key 'smallest' in .source.A.; known: largest_loss_of_accuracy"):
        read_rules(tmp_path / "gate.toml")
