"""What an experiment is called, which runs belong to it, and what determines a result."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from endocil.io.files import portable
from endocil.methods import METHODS, method_title
from endocil.runs.experiments import data_title, digest, groups, label, labels, split_title
from endocil.runs.records import read_run
from reproduction.paper import paper

MakeRun = Callable[..., Path]
MakeSettings = Callable[..., dict[str, Any]]


def test_a_method_alone_is_called_as_the_paper_spells_it(make_settings: MakeSettings) -> None:
    assert label(make_settings("endocil")) == "EndoCIL"


def test_every_method_of_the_toolbox_has_the_papers_spelling() -> None:
    spelled = {name: facts["name"] for name, facts in paper()["methods"].items()}
    ours = {
        "analytic": "Analytic",
        "derpp": "DER++",
        "er_ace": "ER-ACE",
        "lucir": "LUCIR",
        "podnet": "PODNet",
        "multistage": "MultiStage",
        "multistage_fsa": "MultiStage-FSA",
        "ranpac": "RanPAC",
        "simplecil": "SimpleCIL",
    }  # not in EndoCIL's tables
    assert {name: method_title(name) for name in METHODS} == spelled | ours
    assert method_title("mine") == "mine"


def test_a_method_from_outside_is_called_by_its_class(make_settings: MakeSettings) -> None:
    assert label(make_settings("package.module:Mine")) == "Mine"


def test_exchanged_components_tell_runs_of_one_method_apart(make_settings: MakeSettings) -> None:
    settings = [
        make_settings("finetune"),
        make_settings("endocil"),
        make_settings("endocil", memory__select="mean"),
        make_settings("endocil", memory__select="mean", method__loss="cross_entropy"),
    ]
    assert labels(settings) == [
        "Finetune",
        "EndoCIL (loss=prior_regularized, select=mmd)",
        "EndoCIL (loss=prior_regularized, select=mean)",
        "EndoCIL (loss=cross_entropy, select=mean)",
    ]


def test_a_setting_that_only_one_run_has_tells_it_apart(make_settings: MakeSettings) -> None:
    settings = [make_settings("endocil"), make_settings("endocil", method__gamma_max=5.0)]
    assert labels(settings) == ["EndoCIL", "EndoCIL (gamma_max=5.0)"]


def test_settings_outside_method_and_memory_are_shown_with_their_section(make_settings: MakeSettings) -> None:
    settings = [make_settings("icarl"), make_settings("icarl", train__epochs=60)]
    assert labels(settings) == ["iCaRL (train.epochs=6)", "iCaRL (train.epochs=60)"]


def test_two_classes_of_the_same_name_are_told_apart_by_their_module(make_settings: MakeSettings) -> None:
    settings = [make_settings("one:Mine"), make_settings("two:Mine")]
    assert labels(settings) == ["Mine (name=one:Mine)", "Mine (name=two:Mine)"]


def test_runs_that_differ_in_the_seed_alone_are_one_experiment(make_run: MakeRun) -> None:
    folders = [make_run("icarl", 1), make_run("endocil"), make_run("icarl", 0), make_run("icarl", 2)]
    found = groups(map(read_run, folders))
    assert [(group.label, group.seeds) for group in found] == [("iCaRL", (0, 1, 2)), ("EndoCIL", (0,))]


def test_a_repeated_seed_counts_once(make_run: MakeRun) -> None:
    found = groups([read_run(make_run("icarl")), read_run(make_run("icarl", run__threads=1))])
    assert [group.seeds for group in found] == [(0,)]


def test_paths_and_run_settings_do_not_determine_the_result(make_settings: MakeSettings) -> None:
    plain = make_settings("icarl")
    elsewhere = make_settings("icarl", data__root="other/place/test-kvasir", run__threads=8)
    assert digest(plain) == digest(elsewhere)


def test_a_setting_of_none_is_a_setting_that_is_absent(make_settings: MakeSettings) -> None:
    assert digest(make_settings("icarl")) == digest(make_settings("icarl", memory__total=None))


def test_a_tuple_is_the_list_that_toml_makes_of_it(make_settings: MakeSettings) -> None:
    given = make_settings("icarl", scenario__increments=(4, 3, 3, 2, 2))
    assert digest(given) == digest(make_settings("icarl"))


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"data__root": "/images/another-set"},
        {"data__size": 32},
        {"memory__per_class": 50},
        {"method__distil": 2.0},
        {"train__epochs": 7},
    ],
)
def test_every_other_setting_determines_the_result(make_settings: MakeSettings, change: dict[str, Any]) -> None:
    assert digest(make_settings("icarl", **change)) != digest(make_settings("icarl"))


def test_absolute_paths_of_any_system_are_cut_to_their_last_name() -> None:
    given = {"root": "/home/me/set", "weights": r"C:\Users\me\r18.pth", "other": ["~/x/y", "data/set", "z-line"]}
    assert portable(given) == {"root": "set", "weights": "r18.pth", "other": ["y", "data/set", "z-line"]}


@pytest.mark.parametrize(
    ("name", "root", "title"),
    [
        ("gastrovision", "$GASTROVISION", "GastroVision"),
        ("hyper-kvasir", "/data/labeled-images", "Hyper-Kvasir"),
        ("folder", "$HYPER_KVASIR_PART", "Hyper-Kvasir part"),
        ("folder", "/data/hyper-kvasir-part", "Hyper-Kvasir part"),
        ("folder", "/home/somebody/test-kvasir", "test-kvasir"),
        ("csv", "$MY_CLINIC", "My clinic"),
        ("synthetic", None, "synthetic endoscopy"),
        ("package.module:Mine", "/data/x", "Mine"),
    ],
)
def test_data_is_called_by_a_plain_name(name: str, root: str | None, title: str) -> None:
    settings = {"data": {"name": name, **({"root": root} if root else {})}}
    assert data_title(settings) == title
    assert split_title(settings) == title
    grouped = {**settings, "scenario": {"split_by": "group"}}
    assert split_title(grouped) == f"{title}, split by group"


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_called_as_its_page_is(name: str) -> None:
    page = Path(__file__).parents[2] / "docs" / "methods" / f"{name}.md"
    assert page.read_text("utf-8").splitlines()[0] == f"# {method_title(name)}"


def test_a_list_with_a_name_of_its_own_names_the_data() -> None:
    data = {"name": "csv", "root": "$CAPSULE_VISION"}
    assert data_title({"data": {**data, "file": "$KVASIR_CAPSULE_PART"}}) == "Kvasir-Capsule part"
    assert data_title({"data": {**data, "file": "lists/images.csv"}}) == data_title({"data": data})


def test_a_public_data_set_is_named_by_the_classes_that_the_paper_leaves_out_and_it_does_not() -> None:
    settings: dict[str, Any] = {"data": {"name": "capsule-vision"}, "scenario": {"leave_out": ["Normal"]}}
    assert data_title(settings) == "Capsule Vision 2024"
    assert data_title({**settings, "scenario": {"leave_out": []}}) == "Capsule Vision 2024 with Normal"
    assert (
        data_title({**settings, "scenario": {"leave_out": ["Normal", "Polyp"]}}) == "Capsule Vision 2024 without Polyp"
    )
