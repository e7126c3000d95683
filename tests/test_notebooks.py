"""Every notebook of the documentation runs from its first cell to its last, and is kept without outputs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow  # a process of its own, which loads torch
@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_and_ends_in_a_table(file: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(file, as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, startup_timeout=300, resources=place).execute()
    table = str(cells[-1].outputs)
    assert all(word in table for word in ("acc_last", "Finetune", "MyReplay", "nearest_mean", "std"))


def test_notebooks_are_kept_without_outputs() -> None:
    assert [file.stem for file in NOTEBOOKS] == ["own-method"]
    for file in NOTEBOOKS:
        cells = nbformat.read(file, as_version=4).cells  # type: ignore[no-untyped-call]
        assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells)
