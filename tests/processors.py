"""The numerical tests on other processors and with other numbers of threads: `make test-processors`.

Older processors are emulated: oneDNN and ATen are held to their instructions. Ends with a table of what ran under
which instruction set, and with status 1 if anything failed. `python tests/processors.py avx2-2 own-4` runs these ways
alone; options go on to pytest.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
NUMERICAL = (
    "components",
    "data/test_augment.py",
    "data/test_augment_operations.py",
    "data/test_batch.py",
    "data/test_black_frame.py",
    "data/test_decode.py",
    "data/test_fingerprints.py",
    "data/test_resize.py",
    "data/test_near.py",
    "datasets/test_synthetic.py",
    "learning",
    "methods",
    "metrics",
    "model/test_calibration.py",
    "model/test_evaluation.py",
    "model/test_export.py",
    "model/test_frozen_models.py",
    "model/test_gradcam.py",
    "model/test_learn_one_class.py",
    "model/test_learning.py",
    "model/test_out_of_distribution.py",
    "model/test_predicting.py",
    "model/test_restoring.py",
    "networks",
    "test_digests.py",
    "test_numerics.py",
    "test_resume.py",
)
SSE = {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"}
PATIENT = {"OMP_WAIT_POLICY": "passive"}  # a thread that waits leaves the cores alone
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
WAYS = {  # the instructions held to, and threads
    f"{name}-{threads}": (held, threads)
    for name, held in (("sse4.1", SSE), ("avx2", AVX2), ("own", dict[str, str]()))
    for threads in (1, 2, 4)
}


def instructions(held: dict[str, str]) -> str:
    """What torch says it uses."""
    code = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **held}, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def main() -> int:
    wanted = [word for word in sys.argv[1:] if not word.startswith("-")]
    if unknown := set(wanted) - set(WAYS):
        print(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(WAYS)}", file=sys.stderr)
        return 2
    options = [word for word in sys.argv[1:] if word.startswith("-")]
    rows, failed = [], False
    for name in wanted or WAYS:
        held, threads = WAYS[name]
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-n", "2" if threads == 1 else "1", "-m", "not slow", *options]
            + [str(HERE / path) for path in NUMERICAL],
            env={**os.environ, **PATIENT, **held, "ENDOCIL_TEST_THREADS": str(threads)},
            cwd=HERE.parent,
            stdout=subprocess.PIPE,
            text=True,
        )
        (summary, *_) = re.findall(r"(?:\d+ \w+(?:, )?)+(?= in )", done.stdout)[-1:] or ["no test ran"]
        if done.returncode:
            failed = True
            print(done.stdout)
        kernels = f"{held.get('ONEDNN_MAX_CPU_ISA', 'all')} / {instructions(held)}"
        rows.append(f"{name:10}{kernels:20}{threads:>7}   {summary}, {time.monotonic() - began:.0f} s")
        print(rows[-1], flush=True)
    print(f"\n{'way':10}{'oneDNN / ATen':20}{'threads':>7}   tests", *rows, sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
