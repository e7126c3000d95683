"""onnxruntime against torch on the CPU: the same model, the same pictures, by turns.

    python benchmarks/onnx_speed.py [--rounds 30] [--methods endocil der foster] [--batches 1 8 32] [--model FILE]

One thread each, from uint8 pixels to probabilities, in processor time. Without a model, networks that have learned
nothing are taken (ResNet-18 of width 64 at 128 px, five classes in three tasks): speed does not depend on the weights.
The figure is the median over the rounds of onnxruntime's images per second over torch's, with its range; the last
column is the largest difference that the export has found.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import onnxruntime
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from packed import restored
from untrained import write_untrained

from endocil.data.augment import normalise
from endocil.model.file import read_model_file
from endocil.model.onnx import INPUT_NAME, Graph, export

HEAD = "| model | batch | onnxruntime / torch | range | differs by |\n|---|---:|---:|---:|---:|"


def turns(model: Path, onnx: Path, batch: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """One pass of onnxruntime, one of torch."""
    content = read_model_file(model)
    method, manifest = restored(content), content.manifest
    names = list(Graph(method, content).outputs)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(onnx.read_bytes(), options, providers=["CPUExecutionProvider"])
    size = manifest.preprocessing.size
    pixels = torch.randint(0, 256, (batch, size, size, 3), dtype=torch.uint8)
    temperature = manifest.calibration.temperature if manifest.calibration else 1.0

    @torch.inference_mode()
    def with_torch() -> object:
        return (method(normalise(pixels)) / temperature).softmax(dim=1)

    return lambda: session.run(names, {INPUT_NAME: pixels.numpy()}), with_torch


def ratios(
    one: Callable[[], object], other: Callable[[], object], rounds: int, clock: Callable[[], float] = time.process_time
) -> list[float]:
    """Images per second of one over those of the other, round by round; the first round warms up."""
    found = []
    for turn in range(rounds + 1):
        seconds = []
        for act in (one, other) if turn % 2 else (other, one):
            begun = clock()
            act()
            seconds.append(clock() - begun)
        mine, its = seconds if turn % 2 else reversed(seconds)
        found.append(its / mine)
    return found[1:]


def rows(models: dict[str, Path], batches: Sequence[int], rounds: int, folder: Path) -> Iterator[str]:
    for name, model in models.items():
        made = export(model, folder / f"{name}.onnx")
        for batch in batches:
            found = ratios(*turns(model, made.path, batch), rounds)
            middle = statistics.median(found)
            spread = f"{min(found):.2f} to {max(found):.2f}"
            yield f"| {name} | {batch} | {middle:.2f} | {spread} | {made.difference:.1e} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--methods", nargs="+", default=["endocil", "der", "foster"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--model", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if chosen.model:
            models = {chosen.model.stem: chosen.model}
        else:
            models = {
                method: write_untrained(folder / f"{method}.endocil", method, size=chosen.size, width=chosen.width)
                for method in chosen.methods
            }
        print(HEAD)
        for row in rows(models, chosen.batches, chosen.rounds, folder):
            print(row, flush=True)


if __name__ == "__main__":
    main()
