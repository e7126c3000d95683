"""No silent damage: wrong kernels are refused before training, and values that stop being finite end it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from life import Life, differing, state_of
from pictures import TINY, make_images, run_files
from small_networks import Dropping, Pooled, ReadsUnwritten, WrongIn16Bits, WrongLater
from torch import Tensor, nn

import endocil
from endocil import EndocilError
from endocil.data.cache import Images
from endocil.learning.checkpoint import grow
from endocil.learning.numerics import Precision, ValueCheck, largest
from endocil.learning.training import fit
from endocil.methods import Method, build_method
from endocil.methods.base import Phase, shared_schedule
from endocil.networks import compile_backbones, is_compiled

Bits = Literal["32", "bf16", "16"]


def method_on(backbone: nn.Module, name: str = "finetune", epochs: int = 3, **options: object) -> Method:
    schedule = shared_schedule(epochs=epochs, milestones=(2,), batch_size=8, learning_rate=0.05)
    return build_method(name, backbone, options, schedule=schedule, seed=0)


def first_phase(life: Life) -> Phase:
    task = life.scenario.tasks[0]
    grow(life.method, task, life.fabric.device)
    phase: Phase
    (phase,) = life.method.phases(task, life.data(task))
    return phase


def train(life: Life, bits: Bits = "32") -> dict[str, Tensor]:
    places: dict[str, Any] = {
        "fabric": life.fabric,
        "augmentation": life.learner.augmentation,
        "seed": 0,
        "key": (0, 0),
        "precision": Precision(bits),
    }
    phase = first_phase(life)
    list(fit(phase, life.method, **places, logged_head=life.method.classifier))
    return state_of(life.method)


def seeded(backbone: type[nn.Module], **options: object) -> nn.Module:
    torch.manual_seed(0)
    return backbone(**options)


@pytest.mark.parametrize("bits", ["bf16", "16"])
@pytest.mark.parametrize("factor", [1e25, 1e4, 3.0, 0.0, float("nan")])
def test_a_kernel_that_is_wrong_with_16_bits_is_refused_before_the_first_step(
    bits: Bits, factor: float, images: Images, tmp_path: Path
) -> None:
    life = Life(images, tmp_path, method_on(seeded(WrongIn16Bits, factor=factor)))
    with pytest.raises(EndocilError, match=rf"train.precision '{bits}' gives wrong numbers here: .*leave"):
        train(life, bits)


@pytest.mark.parametrize("every", [2, 3, 4])
def test_a_kernel_that_is_wrong_now_and_then_is_refused_too(every: int, images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, method_on(seeded(WrongIn16Bits, every=every)))
    with pytest.raises(EndocilError, match=r"the gradient of \S+ is (not finite|off by)"):
        train(life, "bf16")


def test_a_kernel_that_reads_memory_nobody_has_written_is_refused_whatever_stands_there(
    images: Images, tmp_path: Path
) -> None:
    """Torch's bf16 convolutions on AVX512-BF16 do: they are right as long as they meet zeros."""
    life = Life(images, tmp_path, method_on(seeded(ReadsUnwritten)))
    with pytest.raises(EndocilError, match=r"the gradient of \S+ is not finite"):
        train(life, "bf16")


def test_the_same_network_trains_with_plain_float32(images: Images, tmp_path: Path) -> None:
    state = train(Life(images, tmp_path, method_on(seeded(WrongIn16Bits))))
    assert all(value.isfinite().all() for value in state.values())


@pytest.mark.parametrize("backbone", [Pooled, Dropping])
@pytest.mark.parametrize("bits", ["bf16", "16"])
def test_what_is_right_with_16_bits_is_let_through_and_its_comparison_leaves_no_trace(
    bits: Bits, backbone: type[nn.Module], images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = train(Life(images, tmp_path / "1", method_on(seeded(backbone))), bits)
    monkeypatch.setattr("endocil.learning.training.compare_with_float32", lambda *_: None)
    assert differing(compared, train(Life(images, tmp_path / "2", method_on(seeded(backbone))), bits)) == []


def runs_eagerly() -> bool:
    """Whether the compiler is told to keep out, as the comparison tells it."""
    import torch._dynamo.eval_frame

    return bool(torch._dynamo.eval_frame._stance.stance == "force_eager")


def test_a_compiled_network_that_gives_other_numbers_is_refused(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, method_on(seeded(Pooled)))

    def wrong(*arguments: object) -> Tensor:  # what torch.compile would have made of it
        features: Tensor = type(life.method.backbone)._call_impl(life.method.backbone, *arguments)
        return features if runs_eagerly() else features * 1.5

    life.method.backbone._compiled_call_impl = wrong
    assert is_compiled(life.method)
    with pytest.raises(EndocilError, match=r"^train\.compile gives wrong numbers here: .*leave train\.compile out"):
        train(life)


def test_kernels_of_16_bits_that_compiled_code_calls_are_tried_without_the_compiler(
    images: Images, tmp_path: Path
) -> None:
    life = Life(images, tmp_path, method_on(seeded(ReadsUnwritten)))

    def lucky(pictures: Tensor) -> Tensor:  # compiled code, whose kernels meet zeros in the comparison
        backbone = life.method.backbone
        return backbone.forward(pictures) if runs_eagerly() else Pooled.forward(backbone, pictures)

    life.method.backbone._compiled_call_impl = lucky
    with pytest.raises(
        EndocilError, match=r"^train\.precision 'bf16' gives wrong .* is not finite; leave [^;]*'bf16' out$"
    ):
        train(life, "bf16")


@pytest.mark.parametrize(
    ("factor", "told"),
    [
        (float("nan"), r"backbone\.\S+ is not finite in epoch 2 of phase 'train'; .*the last checkpoint is sound"),
        (1e25, r"backbone\.\S+ (grew from|is not finite)"),
        (1e7, r"backbone\.hidden\.\S+ grew from \S+ to \S+ in epoch 2 of phase 'train'"),
    ],
)
def test_a_weight_that_is_destroyed_ends_the_run_by_its_name_and_the_last_checkpoint_goes_on(
    factor: float, told: str, tmp_path: Path
) -> None:
    images = make_images([14, 11, 12, 4, 13, 9])
    straight = Life(images, tmp_path / "straight", method_on(seeded(Pooled))).live()
    ticks = iter(range(0, 100000, 100))  # a checkpoint is due after every epoch
    damaged = Life(
        images, tmp_path / "run", method_on(seeded(WrongLater, factor=factor, call=5)), clock=lambda: next(ticks)
    )
    with pytest.raises(EndocilError, match=told):
        damaged.live()
    resumed = Life(images, tmp_path / "run", method_on(seeded(Pooled))).go_on()
    assert differing(state_of(straight.method), state_of(resumed.method)) == []


def test_a_stop_after_a_weight_was_destroyed_does_not_replace_the_last_sound_checkpoint(tmp_path: Path) -> None:
    images = make_images([14, 11, 12, 4, 13, 9])
    straight = Life(images, tmp_path / "straight", method_on(seeded(Pooled))).live()
    ticks = iter(range(0, 100000, 100))
    method = method_on(seeded(WrongLater, factor=float("nan"), call=5))  # within the second epoch

    def destroyed() -> bool:
        return not all(value.isfinite().all() for value in method.parameters())

    damaged = Life(images, tmp_path / "run", method, clock=lambda: next(ticks), stop=destroyed)
    with pytest.raises(EndocilError, match=r"is not finite in epoch 2 of phase 'train'"):
        damaged.live()
    resumed = Life(images, tmp_path / "run", method_on(seeded(Pooled))).go_on()
    assert differing(state_of(straight.method), state_of(resumed.method)) == []


def test_a_value_that_consolidation_destroys_ends_the_run_by_its_name(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(images, tmp_path, method_on(seeded(Pooled), "icarl"))

    def consolidate(*_: object) -> None:
        life.method.statistics["alignment"] = torch.tensor([1.0, torch.nan])

    monkeypatch.setattr(life.method, "consolidate", consolidate)
    with pytest.raises(EndocilError, match="alignment is not finite after task 1 was consolidated"):
        life.live(1)


def test_values_that_grow_as_training_makes_them_grow_are_no_damage() -> None:
    network = nn.Linear(3, 2)
    watch = ValueCheck(network, [network])
    with torch.no_grad():
        network.weight.mul_(900.0)
    watch.refuse_damage({"classification": 1.0}, "epoch 0", "nothing")
    with torch.no_grad():
        network.weight.mul_(900.0)
    watch.refuse_damage({"classification": 1.0}, "epoch 1", "nothing")
    with torch.no_grad():
        network.weight[0, 0] = 1e9
    with pytest.raises(EndocilError, match=r"weight grew from \S+ to 1e\+09 in epoch 2"):
        watch.refuse_damage({}, "epoch 2", "nothing")


def test_the_largest_value_is_told_of_real_numbers_alone() -> None:
    found = largest({"a": torch.tensor([-3.0, 2.0]), "n": torch.tensor([7]), "e": torch.zeros(0)})
    assert found == {"a": 3.0}


@pytest.mark.parametrize("how", [{"precision": "16"}, {"precision": "bf16"}, {"accumulate": 3}])
def test_a_run_with_other_numbers_or_in_pieces_resumes_to_the_same_files(how: dict[str, Any], tmp_path: Path) -> None:
    class StoppedError(Exception):
        pass

    epochs: list[dict[str, Any]] = []

    def stop(record: dict[str, Any]) -> None:
        epochs.extend([record] if record["event"] == "epoch" else [])
        if len(epochs) == 4:
            raise StoppedError

    settings = {
        **TINY,
        "network": {"backbone": "small_networks:Pooled"},
        "train": {**TINY["train"], **how},
        "run": {"threads": 1, "checkpoint_seconds": 0.0},
    }
    endocil.run(settings, tmp_path / "straight")
    with pytest.raises(StoppedError):
        endocil.run(settings, tmp_path / "run", show=stop)
    endocil.resume(tmp_path / "run")
    assert run_files(tmp_path / "run") == run_files(tmp_path / "straight")


@pytest.mark.slow
@pytest.mark.timeout(900)  # the compiler takes minutes on a busy machine
def test_what_was_compiled_for_one_instruction_set_is_not_run_with_another(tmp_path: Path) -> None:
    """torch keeps compiled code on disk and does not ask which instructions it was made for."""
    code = (
        "import torch; from torch import nn; from endocil.networks import compile_backbones\n"
        "from small_networks import Convolution\n"
        "torch.manual_seed(0); network = Convolution(); images = torch.randn(4, 3, 8, 8); plain = network(images)\n"
        "compile_backbones(network); torch.testing.assert_close(network(images), plain, rtol=1e-4, atol=1e-5)"
    )
    for instructions in ({}, {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}):
        paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        own = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": paths, **instructions}
        done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **own}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]


def test_evaluation_runs_the_network_as_it_is_written(images: Images, tmp_path: Path) -> None:
    from endocil.learning.features import outputs_of

    life = Life(images, tmp_path, method_on(seeded(Pooled))).live(1)
    shown = life.new_images(life.scenario.tasks[0])
    plain = outputs_of(life.method, shown, 8)
    compile_backbones(life.method)
    assert torch.equal(outputs_of(life.method, shown, 8).logits, plain.logits)
