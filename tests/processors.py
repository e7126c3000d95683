"""The numerical tests on other processors and with other numbers of threads: `make test-processors`.

Older processors are emulated: oneDNN and ATen are held to their instructions. Ends with a table of what ran under
which instruction set, and with status 1 if anything failed.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
NUMERICAL = (
    "data/test_fingerprints.py",
    "data/test_near.py",
    "model/test_calibration.py",
    "model/test_learning.py",
    "model/test_predicting.py",
    "model/test_unlike.py",
    "datasets/test_synthetic.py",
    "model/test_export.py",
    "data/test_augment.py",
    "data/test_batch.py",
    "data/test_decode.py",
    "methods",
    "metrics/test_intervals.py",
    "networks/test_branches.py",
    "model/test_evaluation.py",
    "learning/test_first_task.py",
    "components/test_gradients.py",
    "components/test_losses.py",
    "learning/test_memory.py",
    "metrics/test_metrics.py",
    "networks/test_networks.py",
    "test_numerics.py",
    "test_resume.py",
    "components/test_selection.py",
    "components/test_selection_paths.py",
    "components/test_selection_swaps.py",
    "learning/test_shares.py",
    "metrics/test_statistics.py",
    "learning/test_training.py",
)
SSE = {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"}
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
WAYS = (
    ("SSE4.1", SSE, 1),
    ("AVX2", AVX2, 1),
    ("AVX2", AVX2, 2),
    ("own", {}, 1),
    ("own", {}, 2),
    ("own", {}, 4),
)


def instructions(held: dict[str, str]) -> str:
    """What torch says it uses."""
    code = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **held}, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def main() -> int:
    rows, failed = [], False
    for name, held, threads in WAYS:
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-n", "2", "-m", "not slow", *sys.argv[1:]]
            + [str(HERE / path) for path in NUMERICAL],
            env={**os.environ, **held, "ENDOCIL_TEST_THREADS": str(threads)},
            cwd=HERE.parent,
            stdout=subprocess.PIPE,
            text=True,
        )
        (summary, *_) = re.findall(r"(?:\d+ \w+(?:, )?)+(?= in )", done.stdout)[-1:] or ["no test ran"]
        if done.returncode:
            failed = True
            print(done.stdout)
        kernels = f"{held.get('ONEDNN_MAX_CPU_ISA', 'all')} / {instructions(held)}"
        rows.append(f"{name:8}{kernels:20}{threads:>7}   {summary}, {time.monotonic() - began:.0f} s")
        print(rows[-1], flush=True)
    print(f"\n{'set':8}{'oneDNN / ATen':20}{'threads':>7}   tests", *rows, sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
