"""From a sweep file to its runs: every combination once, whatever the way it is written."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from life import FROZEN
from small import SMALL, write_sweep

from endocil import EndocilError, load_settings
from endocil.methods import COMPARED, method_class
from endocil.runs.experiments import identity
from endocil.runs.sweep.executors import default_workers
from endocil.runs.sweep.plan import PlannedRun, plan, read_sweep, table_names
from endocil.runs.sweep.tune import points

HOME = Path(__file__).parents[2]
OF_THE_PAPER = {*COMPARED, "joint"}


def planned(folder: Path, *overrides: str, **content: Any) -> list[PlannedRun]:
    file = write_sweep(folder, **content)
    return plan(read_sweep(file), file.parent, overrides)


def test_every_combination_is_run_once_and_a_method_without_memory_once_for_all_buffers(tmp_path: Path) -> None:
    student = {"name": "foster", "evaluate": "student"}
    runs = planned(
        tmp_path,
        set={"train.epochs": 3},
        vary={"seed": [0, 1], "memory.per_class": [3, 4, 5], "method": ["finetune", "icarl", student]},
    )
    counts = Counter(one.settings.method.name for one in runs)
    assert counts == {"finetune": 2, "icarl": 6, "foster": 6}
    assert all(one.settings.method.options["evaluate"] == "student" for one in runs if "foster" in one.name)
    assert all(one.settings.train.epochs == 3 for one in runs)
    assert len({one.name for one in runs}) == len(runs) == 14
    assert [one.name.rpartition("-")[0] for one in runs if one.settings.method.name == "finetune"] == [
        "tiny-finetune-per_class-3-seed0",
        "tiny-finetune-per_class-3-seed1",
    ]


def test_a_dotted_key_means_the_same_quoted_or_not_and_lists_and_tables_are_values(tmp_path: Path) -> None:
    quoted = planned(tmp_path, set={"data.size": 32}, vary={"memory.per_class": [3, 4]})
    nested = planned(tmp_path, set={"data": {"size": 32}}, vary={"memory": {"per_class": [3, 4]}})
    assert [one.name for one in quoted] == [one.name for one in nested]
    runs = planned(tmp_path, vary={"scenario.increments": [[3, 2], [2, 2, 1]], "train": [{"epochs": 3, "flip": 0.0}]})
    assert [one.settings.scenario.increments for one in runs] == [(3, 2), (2, 2, 1)]
    assert all((one.settings.train.epochs, one.settings.train.flip) == (3, 0.0) for one in runs)


def test_the_command_line_has_the_last_word_and_the_same_experiment_is_never_run_twice(tmp_path: Path) -> None:
    assert len(planned(tmp_path, "seed=7", vary={"seed": [0, 1, 2]})) == 1
    again = planned(tmp_path, vary={"seed": [0, 1]}, also=[{"vary": {"seed": [1, 2]}}, {"set": {"seed": 2}}])
    assert sorted(one.settings.seed for one in again) == [0, 1, 2]


def test_warm_up_as_a_share_and_as_the_same_epochs_is_one_experiment_told_in_epochs() -> None:
    share, whole = ({"train": {"epochs": 10, "warmup": value}} for value in (0.1, 1))
    assert identity(share) == identity(whole) == {"train.epochs": 10, "train.warmup": 1.0}


def test_milestones_as_shares_and_as_the_same_epochs_are_one_run_and_follow_the_epochs(tmp_path: Path) -> None:
    whole, shares = [[15, 21]], [[0.5, 0.7]]
    (one,) = planned(tmp_path, vary={"train.epochs": [30], "train.milestones": [*whole, *shares]})
    (other,) = planned(tmp_path, vary={"train.epochs": [30], "train.milestones": shares})
    assert other.digest == one.digest
    (longer,) = planned(tmp_path, vary={"train.epochs": [40], "train.milestones": shares})
    assert longer.digest != one.digest
    assert load_settings(other.settings).train.milestones == (0.5, 0.7)  # recorded as given


def test_further_blocks_have_their_own_settings_and_what_is_common(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(tomli_w.dumps({**SMALL, "seed": 5}))
    runs = planned(
        tmp_path,
        set={"train.epochs": 4},
        also=[{"vary": {"seed": [0, 1]}}, {"settings": ["other.toml", "smoke"], "set": {"data.size": 32}}],
    )
    assert [(one.source, one.settings.seed) for one in runs] == [("tiny", 0), ("tiny", 1), ("other", 5), ("smoke", 0)]
    assert {one.settings.train.epochs for one in runs} == {4}


def test_a_run_keeps_its_name_whatever_else_is_in_the_file(tmp_path: Path) -> None:
    (few,) = planned(tmp_path, vary={"method": ["icarl"]})
    many = planned(tmp_path, vary={"method": ["icarl", "wa"], "seed": [0, 1], "memory.per_class": [4, 5]})
    assert few.digest in {one.digest for one in many}


def of_folder(root: str) -> dict[str, object]:
    return {**SMALL, "data": {"name": "folder", "root": root, "size": 16}}


def test_settings_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.toml").write_text(tomli_w.dumps(of_folder(f"/{folder}/images")))
    runs = planned(tmp_path, settings=["a/mine.toml", "tiny.toml", "b/mine.toml"], vary={"seed": [0, 1]})
    assert {one.source for one in runs} == {"a-mine", "tiny", "b-mine"}
    assert {(one.settings.data.options.get("root"), table_names(runs)[one.digest]) for one in runs} == {
        ("/a/images", "a-mine"),
        (None, "tiny"),
        ("/b/images", "b-mine"),
    }


def test_a_file_named_like_a_preset_is_told_from_it(tmp_path: Path) -> None:
    (tmp_path / "smoke.toml").write_text(tomli_w.dumps(SMALL))
    assert [one.source for one in planned(tmp_path, settings=["smoke", "smoke.toml"])] == ["smoke", "smoke-2"]


@pytest.mark.parametrize(
    ("roots", "names"),
    [
        (["/x/images"], ["tiny"]),
        (["/x/images", "/y/images"], ["tiny-x-images", "tiny-y-images"]),
        (["/x/one", "/x/two"], ["tiny-one", "tiny-two"]),
        (["x y/images", "x-y/images"], ["tiny-x-y-images", "tiny-x-y-images-2"]),
    ],
)
def test_every_folder_of_images_has_a_table_of_its_own(tmp_path: Path, roots: list[str], names: list[str]) -> None:
    file = write_sweep(tmp_path, settings="tiny.toml", vary={"data.root": roots, "seed": [0, 1]})
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(of_folder("/nowhere")))
    runs = plan(read_sweep(file), tmp_path)
    found = {(one.settings.data.options["root"], table_names(runs)[one.digest]) for one in runs}
    assert found == set(zip(roots, names, strict=True))


def test_other_paths_share_a_table_unless_a_report_would_take_them_for_one(tmp_path: Path) -> None:
    other = planned(tmp_path, vary={"network.weights": ["/a/one.pt", "/a/two.pt"], "seed": [0, 1]})
    assert set(table_names(other).values()) == {"tiny"}
    alike = planned(tmp_path, vary={"network.weights": ["/a/one.pt", "/b/one.pt"], "seed": [0, 1]})
    assert set(table_names(alike).values()) == {"tiny-a-one.pt", "tiny-b-one.pt"}


def test_runs_that_begin_together_seldom_wait_for_the_same_first_task(tmp_path: Path) -> None:
    runs = planned(tmp_path, vary={"method": ["icarl", "wa", "finetune"], "seed": [0, 1, 2]})
    assert [one.settings.seed for one in runs] == [0, 1, 2] * 3
    assert len({one.first_task_key for one in runs[:3]}) == 3


def test_a_run_takes_one_thread_unless_told_and_as_many_run_as_have_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "free.toml").write_text(tomli_w.dumps({**SMALL, "run": {}}))
    one = planned(tmp_path, settings="free.toml")
    two = planned(tmp_path, "run.threads=2", settings="free.toml")
    assert (one[0].settings.run.threads, two[0].settings.run.threads) == (1, 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert (default_workers(one), default_workers(two)) == (8, 4)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"varied": {}}, ["unknown key 'varied'", "known: also, metric, samples"]),
        ({"also": [{"varied": {}}]}, ["unknown key 'also.0.varied'", "known: set, settings, vary"]),
        ({"vary": {"seed": 3}}, ["vary.seed: input should be a valid list, got 3"]),
        ({"vary": {"seed": []}}, ["vary.seed is an empty list"]),
        ({"vary": {"method": [3]}}, ["'method' takes a name or a table of settings, got 3"]),
        ({"vary": {"method": ["icarll"]}}, ["unknown method.name 'icarll'", "known: analytic, bic"]),
        ({"set": {"train.epoch": 3}}, ["unknown train key 'epoch'", "batch_size"]),
        ({"settings": "nothing"}, ["no settings called", "nothing"]),
        ({"settings": []}, ["names no settings"]),
        ({"search": {"seed": {"low": 3, "high": 1}}}, ["low must lie below high"]),
    ],
)
def test_what_is_wrong_in_a_sweep_file_is_named(tmp_path: Path, content: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(EndocilError) as found:
        planned(tmp_path, **content)
    assert all(word in str(found.value) for word in words), found.value


def test_a_search_is_the_whole_grid_or_a_seeded_draw(tmp_path: Path) -> None:
    lists = {"train.epochs": [1, 2], "train.flip": [0.0, 0.5]}
    grid = points(read_sweep(write_sweep(tmp_path, search=lists)))
    assert len(grid) == 4
    ranges = {
        "train.learning_rate": {"low": 0.001, "high": 1.0, "log": True},
        "train.epochs": {"low": 2, "high": 9},
        "train.flip": [0.0, 0.5],
    }
    file = write_sweep(tmp_path, search=ranges, samples=200)
    drawn = points(read_sweep(file))
    assert drawn == points(read_sweep(file))
    assert drawn != points(read_sweep(write_sweep(tmp_path, search=ranges, samples=200, sampling_seed=1)))
    rates = [point["train.learning_rate"] for point in drawn]
    assert all(0.001 <= rate <= 1.0 for rate in rates)
    assert 60 < sum(rate < 0.0316 for rate in rates) < 140  # half of the decades, not half of the numbers
    assert {point["train.epochs"] for point in drawn} == set(range(2, 10))
    with pytest.raises(EndocilError, match="say how many points to draw"):
        points(read_sweep(write_sweep(tmp_path, search=ranges)))


def counted(name: str, monkeypatch: pytest.MonkeyPatch) -> list[PlannedRun]:
    for variable in (
        "HYPER_KVASIR",
        "GASTROVISION",
        "KVASIR_CAPSULE",
        "CAPSULE_VISION",
        "HYPER_KVASIR_PART",
        "KVASIR_CAPSULE_PART",
    ):
        monkeypatch.setenv(variable, "/nowhere")
    file = HOME / "experiments" / name
    return plan(read_sweep(file), file.parent)


def test_table_2_is_every_method_on_the_four_data_sets_with_three_buffers_and_seeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = counted("table2.toml", monkeypatch)
    without = [name for name in OF_THE_PAPER if not method_class(name).replay]
    replay = len(OF_THE_PAPER) - len(without) + 1  # FOSTER's student beside its teacher
    assert len(runs) == (len(without) + replay * 3) * 4 * 3 == 408
    assert {one.settings.method.name for one in runs} == OF_THE_PAPER
    assert {one.settings.memory.per_class for one in runs} == {30, 40, 50}
    assert {one.settings.seed for one in runs} == {0, 1, 2}
    assert len({one.source for one in runs}) == 4
    assert {(one.settings.train.epochs, one.settings.data.size) for one in runs} == {(100, 256)}


def test_the_ablation_exchanges_each_of_three_components(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = counted("ablation.toml", monkeypatch)
    assert len(runs) == 2 * 2 * 2 * 3
    parts = {
        (one.settings.memory.select, one.settings.method.options["loss"], one.settings.method.options["gradients"])
        for one in runs
    }
    assert len(parts) == 8
    assert {one.settings.memory.per_class for one in runs} == {30}


def test_the_sweep_of_the_subset_is_what_the_ledger_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    from endocil.reports.ledger import read_ledger
    from endocil.runs.records import completed

    runs = counted("hyper-kvasir-part-sweep.toml", monkeypatch)
    assert len(runs) == 3 * (13 + 8 + 5 + 1)
    ledger = [identity(one.settings) for one in read_ledger(HOME / "docs" / "results", complete=completed)]
    missing = [one.name for one in runs if identity(completed(one.settings)) not in ledger]
    assert missing == []


def test_the_ledgers_runs_are_found_with_milestones_as_whole_epochs_and_as_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from endocil.reports.ledger import find_in_ledger
    from endocil.runs.records import completed

    (one, *_) = counted("hyper-kvasir-part-sweep.toml", monkeypatch)
    assert one.settings.train.milestones == (15, 21)
    found = find_in_ledger(completed(one.settings), HOME / "docs" / "results", complete=completed)
    assert found is not None
    for milestones, same in (("[0.5, 0.7]", found), ("[0.5, 0.8]", None)):
        changed = completed(load_settings(one.settings, [f"train.milestones={milestones}"]))
        assert find_in_ledger(changed, HOME / "docs" / "results", complete=completed) == same


def test_the_table_and_the_ablation_are_there_at_small_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = counted("synthetic-sweep.toml", monkeypatch)
    same = {one.settings.method.name for one in counted("table2.toml", monkeypatch)}
    assert {one.settings.method.name for one in runs} == same == OF_THE_PAPER
    assert {one.settings.data.name for one in runs} == {"synthetic"}
    assert len({one.settings.memory.per_class for one in runs}) == 3
    assert len(runs) == 3 * (4 + 10 * 3 + 7)  # EndoCIL itself is in both


def test_the_small_sweep_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = counted("smoke-sweep.toml", monkeypatch)
    assert len(runs) == 10
    assert {one.settings.data.name for one in runs} == {"synthetic"}


@pytest.mark.parametrize(
    ("name", "size", "runs"),
    [
        ("gastrovision", 128, 9),
        ("hyper-kvasir-part", 128, 9),
        ("capsule-vision", 112, 9),
        ("kvasir-capsule-part", 112, 18),
    ],
)
def test_the_frozen_methods_run_on_four_data_sets(
    name: str, size: int, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = counted(f"{name}-frozen-sweep.toml", monkeypatch)
    assert len(planned) == runs
    assert {one.settings.method.name for one in planned} == set(FROZEN) - {"multistage"}
    networks = {
        (one.settings.network.backbone, one.settings.network.weights, one.settings.network.freeze) for one in planned
    }
    assert networks == {("efficientnet-lite0", "imagenet", ("all",))}
    assert {one.settings.data.size for one in planned} == {size}


@pytest.mark.parametrize(("name", "runs", "methods"), [("multistage", 20, 1), ("finetuned", 72, 6)])
def test_pretrained_networks_are_compared_on_all_four_data_sets(
    name: str, runs: int, methods: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = counted(f"{name}-sweep.toml", monkeypatch)
    assert len(planned) == runs
    assert Counter(one.settings.method.name for one in planned).most_common(1)[0][1] == runs // methods
    assert len({(one.settings.data.name, len(one.settings.scenario.leave_out)) for one in planned}) == 4
    assert {one.settings.network.weights for one in planned} == {"imagenet"}
