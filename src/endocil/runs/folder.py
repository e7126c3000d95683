"""The folder of a run: where each file lies, and what may be done with a folder that exists already."""

import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from endocil.data.cache import Progress
from endocil.data.fingerprints import fingerprints
from endocil.data.leaks import leak_rate
from endocil.data.near_duplicates import near_duplicates_of
from endocil.errors import DataError, FileFormatError, ResourceError, SettingsError
from endocil.io.files import (
    LOCK_FILE,
    is_temporary,
    lock,
    locked,
    parse_json,
    read_csv,
    read_whole,
    remove_leftovers,
    write_atomically,
    write_csv,
    write_json,
)
from endocil.learning.checkpoint import ANEW, EXEMPLARS
from endocil.learning.checkpoint import FILE as CHECKPOINT
from endocil.learning.events import environment
from endocil.model.file import RUN_MODEL
from endocil.runs.experiments import differing, flatten
from endocil.runs.parts import RunParts
from endocil.settings.settings import Settings, load_settings, resume_command

PLACES = ("data.root", "data.file")  # where the images are
# what may be edited before a resume: where things are and what is shown; the images are compared by split.csv
CHANGEABLE = frozenset(
    {
        *PLACES,
        "scenario.split",
        "scenario.groups",
        "run.accelerator",
        "run.checkpoint_seconds",
        "run.features",
        "run.first_tasks",
        "run.gallery",
    }
    | {"run.tensorboard", "run.wandb"}
)
# written before settings.toml, which makes a folder a run
FILES_BEFORE_START = frozenset({"split.csv", "leaks.json", "data.json", "environment.json"})
IMPORTED = "imported.json"  # in a folder of predictions of another toolbox: where they come from
SPLIT_HEADER = ("image", "class", "task", "part", "group", "source")


def new_folder(settings: Settings, name: str = "") -> Path:
    """runs/NAME-METHOD-seedN, or the first of ...-2, ...-3 that is free."""
    method = settings.method.name.rpartition(":")[2]  # 'my.module:Thing' becomes 'Thing'
    path = Path("runs", "-".join([*filter(None, [name]), method, f"seed{settings.seed}"]))
    others = (path.with_name(f"{path.name}-{i}") for i in itertools.count(2))
    return next(one for one in itertools.chain([path], others) if RunFolder(one).is_free())


@dataclass(frozen=True)
class RunFolder:
    path: Path

    def locked(self) -> AbstractContextManager[None]:
        refusal = f"another process is working on the run {self.path}; let it finish"
        for entry in self.path.iterdir():
            if entry.is_symlink():
                raise FileFormatError(
                    f"{entry} is a link to {os.readlink(entry)}: a run writes into its own folder alone; replace the "
                    f"link by what it points to"
                )
        return locked(self.path, refusal, patience=0.4)  # 'endocil watch' takes it for a moment, to see if it is free

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def page(self) -> Path:
        return self.path / "report.html"

    @property
    def model(self) -> Path:
        return self.path / RUN_MODEL

    def predictions(self, task: int) -> Path:
        return self.path / "predictions" / f"task-{task}.csv"

    def memory(self, task: int) -> Path:
        return self.path / "memory" / f"task-{task}.csv"

    def finished(self) -> bool:
        return (self.path / "metrics.json").exists()

    def metrics(self) -> Any:
        try:
            return parse_json((self.path / "metrics.json").read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise FileFormatError(f"cannot read {self.path / 'metrics.json'}: {error}; the file is damaged") from error

    @cached_property
    def settings(self) -> Settings:
        """Read once."""
        self.refuse_other_folder()
        if (self.path / IMPORTED).exists():
            raise SettingsError(
                f"{self.path} holds imported predictions: there is no model, no image and nothing to resume; "
                f"table, versus, report, figures and publish take it"
            )
        return load_settings(self.path / "settings.toml")

    def refuse_other_folder(self) -> None:
        if (self.path / "settings.toml").is_file():
            return
        if (self.path / LOCK_FILE).exists() and self._unused():
            raise FileFormatError(
                f"the run in {self.path} was stopped before it began; start it with 'endocil run' and "
                f"-o {self.path} again"
            )
        raise FileFormatError(f"{self.path} is not a run: it has no settings.toml; start one with 'endocil run'")

    def refuse_used(self) -> None:
        """A run starts in a new or empty folder, so that nothing is overwritten."""
        if self.path.is_file():
            raise SettingsError(f"{self.path} is a file; choose another folder with -o")
        if (self.path / "settings.toml").exists():
            if self.finished():
                raise SettingsError(f"{self.path} holds a finished run; choose another folder with -o")
            raise SettingsError(
                f"{self.path} holds an unfinished run; continue with '{resume_command(self.path)}', or choose "
                f"another folder with -o"
            )
        if self.path.exists() and not self._unused():
            raise SettingsError(f"{self.path} is not empty; choose another folder with -o")

    def _unused(self) -> bool:
        """Empty, or with what a process that was killed before its run began has left: never without its lock."""
        names = {entry.name for entry in self.path.iterdir() if not is_temporary(entry)}
        return names <= {LOCK_FILE} or (LOCK_FILE in names and names <= {LOCK_FILE, *FILES_BEFORE_START})

    def is_free(self) -> bool:
        """Whether a run can begin here, and no other process has begun one."""
        if not self.path.exists():
            return True
        if not self.path.is_dir() or not self._unused():
            return False
        if not (self.path / LOCK_FILE).exists():
            return not any(self.path.iterdir())
        with open(self.path / LOCK_FILE, "rb") as file:
            return lock(file, wait=False) != "taken"

    def create(self, parts: RunParts, progress: Progress | None = None, processes: int = 1) -> None:
        """The record of what is about to run; settings come last, as they make the folder a run."""
        table = parts.images.table
        prints = fingerprints(table, progress=progress)  # images are measured once, as in an audit
        near = near_duplicates_of(table, prints, progress=progress)
        leaks = leak_rate(table, parts.scenario.part, digests=prints.digests, near=near)
        write_csv(self.path / "split.csv", SPLIT_HEADER, _split(parts))
        write_json(self.path / "leaks.json", leaks)
        unreadable = [{"image": name, "reason": reason} for name, reason in parts.images.skipped]
        facts = {"notes": parts.notes, "unreadable": unreadable, "pixels": parts.images.pixel_digest()}
        write_json(self.path / "data.json", {**facts, **self._places_from_here(parts.settings)})
        write_json(self.path / "environment.json", environment(parts.settings, processes))
        self.record(parts.settings)

    def record(self, settings: Settings) -> None:
        """Replace settings.toml."""
        write_atomically(self.path / "settings.toml", settings.to_toml())

    def remove_temporary_files(self, first_tasks: str | None = None) -> None:
        """A process that is killed while it writes leaves its temporary file behind; also beside shared first tasks."""
        inner = (path for path in self.path.rglob("*") if path.is_dir() and not path.is_symlink())
        shared = () if first_tasks is None else (Path(first_tasks).expanduser(),)
        for folder in (self.path, *inner):
            remove_leftovers(folder)
        with suppress(OSError):  # it may belong to somebody else
            for folder in shared:
                remove_leftovers(folder)

    def tidy_up(self) -> None:
        """Remove what a process that was killed when its run was finished has left, where the folder can be written."""
        with suppress(OSError, ResourceError), self.locked():
            self.remove_temporary_files()
            self.remove_checkpoint()

    def remove_checkpoint(self) -> None:
        """A finished run needs no checkpoint; its model file holds weights and exemplars."""
        for path in (self.path / CHECKPOINT, *self.path.glob(EXEMPLARS.format(task="*"))):
            path.unlink(missing_ok=True)

    def refuse_other_settings(self, settings: Settings, learned_by: Mapping[str, Any]) -> None:
        """What was learned so far was learned by these settings: others would be recorded for all of it."""
        now = flatten(settings.model_dump(mode="json", exclude_none=True))
        try:
            then = flatten(learned_by)
        except (ArithmeticError, TypeError, ValueError) as error:  # made by hand, under a right checksum
            raise FileFormatError(
                f"the settings in the checkpoint {self.path / CHECKPOINT} are none; {ANEW}"
            ) from error
        changed = sorted(differing([now, then]) - CHANGEABLE)
        if changed:
            pairs = "; ".join(f"{key} was {then.get(key, 'not set')}, is {now.get(key, 'not set')}" for key in changed)
            raise SettingsError(
                f"{self.path / 'settings.toml'} was changed since the run's checkpoint ({pairs}); put the old values "
                f"back, or start a new run with 'endocil run {self.path / 'settings.toml'} -o FOLDER'"
            )

    def results_of(self, task: int) -> dict[str, str]:
        """The lists of a task that metrics and reports are computed from, with their digests (BLAKE2b)."""
        files = [path for path in (self.predictions(task), self.memory(task)) if path.exists()]
        return {path.relative_to(self.path).as_posix(): _digest_of(path) for path in files}

    def refuse_other_results(self, recorded: Mapping[str, str]) -> None:
        """The metrics are computed from the lists of all tasks, also of those before the run was stopped."""
        found = {name: digest for task in range(len(recorded)) for name, digest in self.results_of(task).items()}
        changed = sorted(name for name, digest in recorded.items() if found.get(name) != digest)
        if changed:
            raise FileFormatError(
                f"{self.path / changed[0]} is not as the run has written it: it was changed, damaged or removed; "
                f"restore it, or start a new run"
            )

    def _places_from_here(self, settings: Settings) -> dict[str, dict[str, str]]:
        """Of places that are relative to the working folder: where they are from the run's folder on."""
        relative = {
            key: os.path.relpath(text, self.path)
            for key, text in _places(settings).items()
            if not os.path.isabs(text) and not text.startswith(("~", "$")) and Path(text).exists()
        }
        return {"places": relative} if relative else {}

    def resumed_settings(self, changes: Sequence[str] = ()) -> Settings:
        """Those of the run, with changes of what decides no result.

        A relative place of the images that is not below the working folder is looked for from the run's folder on, as
        the run may have been resumed elsewhere, or moved together with its images."""
        settings = load_settings(self.settings, changes) if changes else self.settings
        before, now = (flatten(one.model_dump(mode="json", exclude_none=True)) for one in (self.settings, settings))
        if others := sorted(differing([before, now]) - CHANGEABLE):
            raise SettingsError(
                f"--set {others[0]}: it decides the result, so that a run cannot change it when it is resumed; start a "
                f"new run. What can be changed: {', '.join(sorted(CHANGEABLE))}"
            )
        try:
            recorded = parse_json((self.path / "data.json").read_text("utf-8")).get("places", {})
            found = {key: os.path.normpath(self.path / str(place)) for key, place in recorded.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return settings
        lost = {key for key, text in _places(settings).items() if not Path(text).exists() and before[key] == text}
        moved = [f"{key}={json.dumps(found[key])}" for key in sorted(lost & found.keys()) if Path(found[key]).exists()]
        return load_settings(settings, moved) if moved else settings

    def refuse_other_images(self, parts: RunParts) -> None:
        """The images must be those of split.csv, which the checkpoint refers to by row, with the same pixels."""
        recorded = [tuple(row.values()) for row in read_csv(self.path / "split.csv")]
        current = [tuple(str(value) for value in row) for row in _split(parts)]
        if recorded != current:
            raise DataError(
                f"the images at data.root are not those of the run in {self.path} ({len(current)} rows, split.csv has "
                f"{len(recorded)}); restore the data, name its place with --set data.root=FOLDER, or start a new run"
            )
        try:
            pixels = parse_json((self.path / "data.json").read_text("utf-8"))["pixels"]
        except (OSError, ValueError, LookupError, TypeError):
            raise FileFormatError(
                f"{self.path / 'data.json'} does not hold the digest of the run's images: it is damaged, or of another "
                f"version of endocil; start a new run"
            ) from None
        if pixels != parts.images.pixel_digest():
            raise DataError(
                f"the images at data.root have the names of those of the run in {self.path}, but other pixels; restore "
                f"the data or start a new run"
            )


def _digest_of(path: Path) -> str:
    return hashlib.blake2b(read_whole(path), digest_size=16).hexdigest()


def _places(settings: Settings) -> dict[str, str]:
    options = {f"data.{name}": value for name, value in settings.data.options.items()}
    return {key: value for key, value in options.items() if key in PLACES and isinstance(value, str)}


def _split(parts: RunParts) -> list[tuple[object, ...]]:
    table, scenario, part = parts.images.table, parts.scenario, parts.scenario.part
    tasks = (scenario.class_tasks[table.labels] if scenario.arrivals is None else scenario.arrivals).tolist()
    return [
        (table.ids[i], table.classes[label], tasks[i], part[i], table.groups[i], table.sources[i])
        for i, label in enumerate(table.labels.tolist())
    ]
