"""What runs and the ledger have recorded, read back as this version would have written it.

A setting that came later was at its default before. Without it written out, seeds that were run by two versions would
pass as two experiments.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from endocil.assembly import complete
from endocil.errors import EndocilError
from endocil.report import RunRecord, read_run
from endocil.settings import Settings, load_settings


def completed(settings: Mapping[str, Any] | Settings) -> dict[str, Any]:
    """Settings with every default written out; as they are where they name things that are not here."""
    try:
        recorded = load_settings(settings)
        filled = complete(recorded).model_dump(mode="json", exclude_none=True)
    except EndocilError:
        return dict(settings)
    if recorded.run.threads is None:
        del filled["run"]["threads"]  # complete takes this machine's, which is not where the run was
    return filled


def read_runs(folders: Iterable[Path]) -> list[RunRecord]:
    """Finished runs, of whatever version, as they can be compared."""
    return [read_run(folder, complete=completed) for folder in folders]
