"""The published folder: whole or not there. One that was published before is replaced, any other is left alone."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from endocil.errors import EndocilError
from endocil.files import filling_folder, temporary_beside, write_json

WRITER, RECORD = "endocil publish", "publish.json"


def write_record(folder: Path, runs: Sequence[dict[str, Any]]) -> None:
    """Which files are here and from which runs: by it the folder is known again."""
    files = sorted(_files(folder))
    write_json(folder / RECORD, {"written_by": WRITER, "runs": list(runs), "files": files})


def refuse_foreign(folder: Path) -> None:
    """Nothing is ever removed that was not published."""
    if folder.exists() and not folder.is_dir():
        raise EndocilError(f"{folder} is a file; choose a folder with -o")
    if not folder.exists() or not any(folder.iterdir()):
        return
    published = _published(folder)
    if published is None:
        raise EndocilError(
            f"{folder} is not empty and was not written by '{WRITER}'; choose another folder with -o"
        )
    if others := sorted(_files(folder) - published - {RECORD}):
        raise EndocilError(
            f"{folder} holds files that '{WRITER}' did not write ({', '.join(others[:3])}); "
            f"move them, or choose another folder with -o"
        )


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of `folder` when the block ends well, or is removed."""
    old = temporary_beside(folder)
    try:
        with filling_folder(folder) as new:
            yield new
            if folder.exists():
                folder.rename(old)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)  # the new one could not take its place
        shutil.rmtree(old, ignore_errors=True)


def _published(folder: Path) -> set[str] | None:
    """The files that the folder's record names; none where nothing was published."""
    try:
        record = json.loads((folder / RECORD).read_text("utf-8"))
        return set(record["files"]) if record["written_by"] == WRITER else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _files(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if not file.is_dir()}
