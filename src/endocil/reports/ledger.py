"""The ledger: one small JSON file for each run whose results are kept. No images, no predictions, no paths.

A file is named after its run and ends in a digest of the settings that determine the result, so that a run
once in the ledger need not be repeated.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from endocil.errors import DataError, EndocilError, FileFormatError, SettingsError
from endocil.io.files import last_name, parse_json, portable, write_atomically
from endocil.methods import method_class, method_title
from endocil.runs.experiments import digest, evaluated_part, flatten, identity, label
from endocil.runs.records import Complete, Json, RunRecord, completed, is_imported, read_run

LEDGER = Path("docs/results")
# The components that an ablation exchanges, in the paper's order.
COMPONENTS = ("memory.select", "method.loss", "method.gradients")


class AlreadyInLedgerError(EndocilError):
    """The run need not be added; `file` has its results."""

    def __init__(self, file: Path) -> None:
        super().__init__(f"already in the ledger: {file}")
        self.file = file


@dataclass(frozen=True)
class Entry:
    """One run of the ledger."""

    file: Path
    settings: Json
    metrics: Json
    exemplars: int
    parameters: int | None = None  # that predict
    seconds: float | None = None  # of training
    seconds_per_epoch: float | None = None
    peak_megabytes: float | None = None
    images: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # class -> part -> number of images
    content: str | None = None  # a digest of the images; entries of earlier versions have none
    # Empty in entries of earlier versions, too:
    leaks: Mapping[str, float | None] = field(default_factory=dict)  # shares of the test images (data/leaks.py)
    measured: Mapping[str, Sequence[float | None]] = field(default_factory=dict)  # by the method, after each task


def add_to_ledger(run_folder: Path, ledger_folder: Path = LEDGER, *, content: str | None = None) -> Path:
    """Store a finished run's small results and return the file; a run that it has already is refused.

    `content`: a digest of the run's images, where it is known."""
    record = read_run(run_folder)
    if is_imported(record.settings):
        raise SettingsError(f"{run_folder} holds imported predictions; the ledger keeps runs whose settings are known")
    if evaluated_part(record.settings) != "test":
        raise SettingsError(
            f"{run_folder} was evaluated on its {evaluated_part(record.settings)} part, for tuning; "
            f"the ledger takes results on the test part alone"
        )
    existing = find_in_ledger(record.settings, ledger_folder)
    if existing is not None:
        refuse_other_images(existing, total_counts(record.images), lambda: content, where=run_folder)
        raise AlreadyInLedgerError(existing)
    file = Path(ledger_folder) / ledger_name(record.settings)
    entry = {
        "settings": portable(record.settings),
        "environment": portable(record.environment),
        "images": record.images,
        **({} if content is None else {"content": content}),
        "leaks": _rounded(record.leaks),
        "exemplars": len(record.exemplars),
        "metrics": _rounded(record.metrics),
        **_measured(record),
    }
    # Indented, but each list of numbers on one line: short to read and small in a diff.
    # A text holds no raw line break, so "[" before one opens a list.
    text = json.dumps(entry, indent=1, allow_nan=False)
    text = re.sub(r"\[\n([^\[\]{}\"]*)\]", lambda match: f"[{' '.join(match[1].split())}]", text)
    write_atomically(file, text + "\n", public=True)
    return file


def total_counts(images: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """How many images each class has, whatever their part."""
    return {name: sum(parts.values()) for name, parts in images.items()}


def refuse_other_images(
    file: Path, counts: Mapping[str, int], content: Callable[[], str | None], *, where: object
) -> None:
    """A folder of the same name somewhere else may hold other images: their numbers must not pass for these.

    `content` may have to read all images, so it is called only where the entry has something to compare it with."""
    entry = _read_entry(file)
    known = total_counts(entry.images)
    if known != counts:
        difference = f"{sum(known.values())}, here {sum(counts.values())}"
    else:
        here = None if entry.content is None else content()
        if here is None or here == entry.content:
            return
        difference = f"digest {entry.content}, here {here}"
    raise DataError(
        f"{file} has the settings of {where}, but on other images ({difference}); "
        f"rename the data folder or choose another ledger"
    )


def find_in_ledger(
    settings: Mapping[str, Any], ledger_folder: Path = LEDGER, *, complete: Complete | None = None
) -> Path | None:
    """The ledger's file of a run with these settings, complete as settings.toml records them, or None.

    `complete` fills in defaults that a setting has got since an entry was written, so that old runs still count."""
    file = Path(ledger_folder) / ledger_name(settings)
    if file.is_file():
        return file
    if complete is None or not Path(ledger_folder).is_dir():
        return None
    own = identity(settings)
    entries = read_ledger(ledger_folder, complete=complete)
    return next((entry.file for entry in entries if identity(entry.settings) == own), None)


def ledger_name(settings: Mapping[str, Any]) -> str:
    """<data>-<method>-<components>-b<buffer>-s<seed>-<digest>.json"""
    values = flatten(settings)
    components = [str(values[key]) for key in COMPONENTS if key in values]
    buffer = values.get("memory.per_class", values.get("memory.total", 0))
    data, method = (str(settings[section]["name"]).rpartition(":")[2] for section in ("data", "method"))
    folder = last_name(settings["data"].get("root") or data)
    data = data if folder == data else f"{data} {folder}"
    method += label(settings).removeprefix(method_title(settings["method"]["name"]))  # "(evaluate=student)"
    parts = [data, method, *components, f"b{buffer}", f"s{settings['seed']}"]
    plain = [re.sub(r"[^A-Za-z0-9_]+", "-", part).strip("-") for part in parts]  # letters that every file system takes
    return "-".join([*plain, digest(settings)]) + ".json"


def read_ledger(ledger_folder: Path = LEDGER, *, complete: Complete | None = None) -> list[Entry]:
    """All entries by file name. `complete` fills in defaults that a setting has got since an entry was written."""
    if not Path(ledger_folder).is_dir():
        raise SettingsError(f"there is no ledger {ledger_folder}; a run is added with `endocil ledger add RUN`")
    entries = [_read_entry(file) for file in sorted(Path(ledger_folder).glob("*.json"))]
    if complete is None:
        return entries
    return [replace(entry, settings=complete(entry.settings)) for entry in entries]


def _read_entry(file: Path) -> Entry:
    numbers = ("parameters", "seconds", "seconds_per_epoch", "peak_megabytes")
    optional = (*numbers, "images", "content", "leaks", "measured")
    try:
        stored = parse_json(file.read_text("utf-8"))
        known = {key: stored[key] for key in optional if key in stored}
        return Entry(file, stored["settings"], stored["metrics"], stored["exemplars"], **known)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileFormatError(
            f"{file} is not an entry of the ledger ({error}); remove it and add the run again "
            f"with `endocil ledger add RUN`"
        ) from error


def _measured(record: RunRecord) -> dict[str, Any]:
    """Time of training, and memory, parameters and what the method measured where the run has recorded them.

    `seconds` are what the method costs; of these another run has spent `shared_seconds`, on a shared first task."""
    epochs = [event for event in record.events_of("epoch") if "seconds" in event]
    seconds = sum(event["seconds"] for event in epochs)
    measured: dict[str, Any] = {
        "seconds_per_epoch": round(seconds / len(epochs), 3) if epochs else None,
        "seconds": round(seconds, 1) if epochs else None,
    }
    if shared := sum(event["seconds"] for event in epochs if event.get("shared")):
        measured["shared_seconds"] = round(shared, 1)
    if learned := record.events_of("learned"):
        measured["parameters"] = learned[-1]["parameters"]
        measured["peak_megabytes"] = round(max(event["peak_megabytes"] for event in learned))
        by_task = [event.get("measured", {}) for event in learned]
        names = sorted({name for own in by_task for name in own})
        measured["measured"] = {name: _rounded([own.get(name) for own in by_task]) for name in names}
    return measured


def _rounded(value: Any) -> Any:
    """Six decimals: more than any table shows, at half the size. The confusion matrix of the last task stays; those
    of the tasks before it are in the run folder."""
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items() if key != "confusions"}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, 6) if isinstance(value, float) else value


def insert_texts(file: Path, texts: Mapping[str, str], *, kind: str = "ledger", check: bool = False) -> bool:
    """Put each text between its markers <!-- ledger:NAME --> and <!-- /ledger --> in the file, so that documents say
    what was measured, and return whether the file changed. `kind` is the word in the markers.

    With `check` the file stays as it is, and the result is whether it would change."""
    opening, end = re.compile(rf"<!-- {kind}:([\w-]+) -->"), f"<!-- /{kind} -->"
    place = re.compile(rf"{opening.pattern}(.*?){end}", re.DOTALL)
    file = Path(file)
    try:
        before = file.read_bytes().decode("utf-8")  # as bytes, because reading text would change line ends
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read {file}: {error}") from error
    opened, places = opening.findall(before), place.findall(before)
    if not opened:
        raise SettingsError(f"{file} has no place for a table; write <!-- {kind}:NAME --> and {end} there")
    for name in opened:
        if name not in texts:
            raise SettingsError(f"{file} asks for the table '{name}'; known: {', '.join(sorted(texts))}")
    if len(places) != len(opened) or any(opening.search(body) for _, body in places):
        raise SettingsError(f"{file}: a <!-- {kind}:NAME --> is not closed by {end} before the next one")

    def filled(match: re.Match[str]) -> str:
        return f"<!-- {kind}:{match[1]} -->\n\n{texts[match[1]]}\n{end}"

    after = place.sub(filled, before)
    if after != before and not check:
        write_atomically(file, after, public=True)
    return after != before


def uses_method_defaults(settings: Mapping[str, Any], components: bool = False) -> bool:
    """Are the options of [method] and [memory] the method's defaults, apart from its name, head and memory size?

    With `components`, the components of an ablation may differ."""
    exchanged = {key.partition(".")[2] for key in COMPONENTS} if components else set()
    kept = {"per_class", "total", *exchanged}
    name = settings["method"]["name"]
    try:
        kept |= {"name", *method_class(name).evaluation_options}
    except EndocilError:  # a method from outside that is not installed here
        return False
    own = {
        section: {key: value for key, value in settings[section].items() if key in kept}
        for section in ("method", "memory")
    }
    return completed({**settings, **own}) == dict(settings)
