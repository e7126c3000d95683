"""Settings: presets, files, overrides, and refusals that name the known keys."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from commands import endocil
from pydantic import ValidationError

from endocil import EndocilError, load_settings
from endocil.datasets import DATASETS
from endocil.learning.build import complete
from endocil.methods.base import Schedule, milestone_epochs
from endocil.settings.settings import Settings, presets


def test_defaults_are_the_papers_protocol() -> None:
    settings = Settings()
    train = settings.train
    assert (train.epochs, train.learning_rate, train.milestones, train.batch_size) == (100, 0.1, (0.5, 0.7), 64)
    assert (train.momentum, train.first_weight_decay, train.weight_decay) == (0.9, 5e-4, 2e-4)
    assert settings.data.size == 256
    whole = complete(load_settings({"data": {"name": "synthetic"}}))
    assert whole.memory.per_class == 30
    assert whole.scenario.tasks == 5
    assert whole.network.options == {"width": 64, "stem": "7x7"}
    assert whole.method.options["beta"] == 0.96


@pytest.mark.parametrize(
    ("milestones", "epochs", "expected"),
    [
        ((0.5, 0.7), 100, (50, 70)),
        ((0.5, 0.7), 50, (25, 35)),
        ((0.5, 0.7), 30, (15, 21)),
        ((0.5, 0.7), 16, (8, 12)),
        ((0.5, 0.7), 4, (2, 3)),
        ((0.5, 0.7), 1, (1, 1)),  # never: the only epoch is trained at the full rate
        ((0.29, 0.55), 100, (29, 55)),  # as written, whatever 0.55 * 100 is in binary
        ((50, 70), 30, (50, 70)),
        ((), 30, ()),
    ],
)
def test_shares_of_the_epochs_are_rounded_up_and_whole_epochs_stay(
    milestones: tuple[float, ...], epochs: int, expected: tuple[int, ...]
) -> None:
    chosen = load_settings({"train": {"epochs": epochs, "milestones": milestones}}).train
    assert chosen.milestones == milestones
    assert milestone_epochs(chosen.milestones, chosen.epochs) == expected
    rates = [Schedule(epochs=epochs, milestones=milestones).learning_rate_at(epoch) for epoch in range(epochs)]
    falls = [epoch for epoch in range(1, epochs) if rates[epoch] < rates[epoch - 1]]
    assert falls == [epoch for epoch in expected if epoch < epochs]
    assert rates[0] == 0.1


@pytest.mark.parametrize(
    "given", ["[0.5, 70]", "[0]", "[1.0]", "[1.5]", "[0.0]", "[-1]", "[-0.5]", "[true]", "0.5", "[nan]", "half"]
)
def test_milestones_of_another_form_are_refused_with_both_forms(given: str) -> None:
    with pytest.raises(EndocilError) as refused:
        load_settings("smoke", [f"train.milestones={given}"])
    told = str(refused.value)
    assert told.startswith("train.milestones: expected shares of the epochs, above 0 and below 1, such as [0.5, 0.7], ")
    assert "or whole epochs of 1 or more, such as [50, 70], not both, got" in told
    assert "\n" not in told


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_valid_and_complete(name: str) -> None:
    whole = complete(load_settings(name))
    assert whole.data.name in DATASETS
    assert load_settings(tomllib.loads(whole.to_toml())) == whole


@pytest.mark.parametrize("name", presets())
def test_every_preset_keeps_the_form_of_its_schedule_with_any_number_of_epochs(name: str) -> None:
    for epochs in (1, 2, 10, 50):
        train = load_settings(name, [f"train.epochs={epochs}"]).train
        assert train.milestones
        assert all(0.0 < milestone < 1.0 for milestone in train.milestones)  # shares, which follow the epochs


def test_the_rate_of_the_smoke_preset_falls_after_four_and_five_of_its_six_epochs() -> None:
    train = load_settings("smoke").train
    assert (train.epochs, milestone_epochs(train.milestones, train.epochs)) == (6, (4, 5))


EXPERIMENTS = sorted(Path(__file__).parents[1].glob("experiments/*.toml"))
# a sweep file names settings and is no settings file (tests/runs/test_plan.py)
SINGLE = [path for path in EXPERIMENTS if "settings" not in tomllib.loads(path.read_text("utf-8"))]


@pytest.mark.parametrize("path", SINGLE, ids=lambda p: p.name)
def test_every_experiment_is_valid(path: Path) -> None:
    assert complete(load_settings(path)).data.options["root"].startswith("$")


def test_completing_writes_out_the_defaults_of_the_named_things() -> None:
    whole = complete(load_settings({"data": {"name": "synthetic"}, "method": {"name": "icarl"}}))
    assert whole.memory.select == "mean"
    assert whole.method.options == {"temperature": 2.0, "distil": 1.0, "native_schedule": False}
    assert complete(whole) == whole


def test_overrides_are_read_as_toml_and_else_as_text() -> None:
    settings = load_settings("smoke", ["train.epochs=3", "method.name=icarl", "scenario.increments=[4, 2]", "seed=7"])
    assert (settings.train.epochs, settings.method.name, settings.seed) == (3, "icarl", 7)
    assert settings.scenario.increments == (4, 2)


def test_of_two_settings_that_exclude_each_other_the_override_counts() -> None:
    assert load_settings("smoke", ["memory.total=20"]).memory.per_class is None
    assert load_settings("smoke", ["scenario.increments=[2, 4]"]).scenario.tasks is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epoch=3", "unknown train key 'epoch'; known: accumulate, .*batch_size, brightness"),
        ("trains.epochs=3", "unknown settings key 'trains'; known: data, memory, method"),
        ("train.epochs=many", "train.epochs: input should be a valid integer"),
        ("train.epochs=0", "train.epochs: input should be greater than or equal to 1, got 0"),
        ("train.learning_rate=inf", "train.learning_rate: input should be a finite number, got inf"),
        ("train.weight_decay=nan", "train.weight_decay: input should be a finite number, got nan"),
        ("epochs", "is not of the form key=value"),
        ("seed.x=1", "'seed' is a value, not a section"),
    ],
)
def test_a_wrong_override_is_refused_in_one_sentence(override: str, message: str) -> None:
    with pytest.raises(EndocilError, match=message):
        load_settings({"seed": 1}, [override])


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        EndocilError, match=r"no settings called 'nothing': expected a TOML file or one of the presets .*demo"
    ):
        load_settings("nothing")
    (tmp_path / "broken.toml").write_text("seed = ")
    with pytest.raises(EndocilError, match="are not valid TOML"):
        load_settings(tmp_path / "broken.toml")


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_a_file_in_another_encoding_is_told_as_such(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "own.toml").write_text('seed = 1  # für "Gerät"', encoding)
    with pytest.raises(EndocilError, match=r"own\.toml are not UTF-8 text"):
        load_settings(tmp_path / "own.toml")


def test_settings_are_frozen() -> None:
    settings: Any = Settings()
    with pytest.raises(ValidationError):
        settings.seed = 3


@pytest.mark.parametrize(("old", "new"), [("standard", "7x7"), ("small", "3x3"), ("3x3-pool", "3x3-pool")])
def test_stems_of_earlier_results_have_the_names_of_today(old: str, new: str) -> None:
    assert load_settings({"network": {"stem": old}}).network.options == {"stem": new}
    assert load_settings({}, [f"network.stem={old}"]).network.options == {"stem": new}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("run.threads=100000", r"run\.threads: input should be less than or equal to 512"),
        ("data.size=1000000000", r"data\.size: input should be less than or equal to 8192"),
        (f"seed={2**70}", "seed: input should be"),
        ("method.x=" + "[" * 5000 + "]" * 5000, "nested"),
    ],
)
def test_numbers_and_nesting_that_no_machine_can_take_are_one_line(change: str, message: str) -> None:
    if "nested" in message:  # a value that is no TOML is text
        assert load_settings("smoke", [change]).method.options["x"].startswith("[[[")
        return
    with pytest.raises(EndocilError, match=message):
        load_settings("smoke", [change])


@pytest.mark.parametrize("width", [10**9, 4096, -8, 0])
def test_a_width_that_no_machine_can_take_is_refused_before_any_memory_is_taken(width: int) -> None:
    from endocil.networks import build_backbone

    with pytest.raises(EndocilError, match=rf"network\.width is {width}; expected a multiple of 8 up to 512"):
        build_backbone("resnet18", seed=0, options={"width": width})


@pytest.mark.parametrize(
    "text",
    [
        *(
            "x = " + "[" * 3000 + "]" * 3000,
            "[" + ".".join("a" * 200) + "]\nb = 1",
            "x = " + "9" * 5000,
            "x = {" + "a.b.",
        ),
        *(".".join("a" * 100_000) + " = 1", "# much\n" * 200_000),  # the first took minutes
    ],
    ids=["lists", "tables", "digits", "cut", "dots", "long"],
)
def test_a_toml_file_that_cannot_be_read_is_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    for name in (["check"], ["sweep"]):
        done = endocil(*name, file, *(["-o", tmp_path / "out"] if name == ["sweep"] else []))
        assert done.returncode == 1
        assert "is not valid TOML" in done.stderr or "are not valid TOML" in done.stderr


def test_a_toml_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_bytes(b"\xef\xbb\xbfseed = 7\n")
    assert load_settings(file).seed == 7
