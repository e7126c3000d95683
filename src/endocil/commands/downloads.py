"""endocil data where and check: the public data sets."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from endocil.commands.common import console, say
from endocil.errors import EndocilError

if TYPE_CHECKING:
    from endocil.datasets.checking import ClassCheck
    from endocil.images.table import ImageTable

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="hyper-kvasir, gastrovision, kvasir-capsule or capsule-vision.")
]


def where(name: Name) -> None:
    """Tell where to get a public data set, its terms, how to place it, and the tasks that its presets make of it."""
    from endocil.datasets.catalogue import as_published, describe, find

    facts = find(name)
    say(describe(facts))
    for preset in facts.presets:
        say(f"\n{_task_table(preset, as_published(facts))}")


def check(
    name: Name,
    root: Annotated[Path, typer.Argument(help="The folder or the archive of the download.")],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Another option of the data set, e.g. data.test=FOLDER."
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Look at the headers of the images alone; misses files that are cut."),
    ] = False,
) -> None:
    """Compare a download with what was published; an archive is extracted into the cache."""
    from endocil.datasets import load_table
    from endocil.datasets.catalogue import find
    from endocil.datasets.checking import check_archive, check_classes, find_unreadable
    from endocil.display import plain_progress
    from endocil.settings import load_settings

    facts, damaged = find(name), False
    options = load_settings(facts.presets[0], changes or ()).data.options | {"root": str(root)}
    if root.is_file():
        verdict, damaged = check_archive(facts, root, plain_progress(console(), "bytes of the archive"))
        say(verdict)
        _extract(root)
    table = load_table(name, options, plain_progress(console(), "bytes extracted"))
    unreadable = find_unreadable(table, plain_progress(console(), "images looked at"), quick=quick)
    rows = check_classes(facts, table, unreadable)
    say(_class_table(rows))
    for note in table.notes:
        say(note)
    for image, reason in list(unreadable.items())[:20]:
        say(f"unreadable: {image}: {reason}")
    for preset in facts.presets:
        say(f"\n{_task_table(preset, table)}")
    short = sum(row.verdict != "complete" for row in rows)
    if short or damaged:
        raise EndocilError(
            f"{root} is not the published {facts.title}: {short} of {len(rows)} classes differ"
            f"{', and the archive is damaged' if damaged else ''}; see the table, or download it again"
        )
    looked = "; their headers alone were looked at" if quick else ", all of them decoded"
    say(f"{root}: complete, {len(table):,} images{looked}")


def _extract(archive: Path) -> None:
    """Here with progress; the loader then finds the images in the cache."""
    from endocil.datasets.archives import extract
    from endocil.display import plain_progress

    extracted = extract(archive, progress=plain_progress(console(), "bytes extracted"))
    say(f"{extracted.files:,} files in {extracted.folder}")


def _class_table(rows: list["ClassCheck"]) -> str:
    lines = [("class", "part", "published", "found", "")]
    lines += [(row.label, row.part, f"{row.expected:,}", f"{row.found:,}", row.verdict) for row in rows]
    if not any(row.part for row in rows):
        lines = [(label, *rest) for label, _, *rest in lines]  # type: ignore[misc]
    return _aligned(lines)


def _task_table(preset: str, table: "ImageTable") -> str:
    """The tasks of a preset with their training and test images: Table 1 of the paper, where the data is whole."""
    from endocil.assembly import scenario_of
    from endocil.scenario import TEST, TRAIN, keep_classes
    from endocil.settings import load_settings

    settings = load_settings(preset)
    chosen = settings.scenario
    try:
        kept = keep_classes(
            table, minimum=chosen.minimum, leave_out=chosen.leave_out, order=chosen.order, seed=settings.seed
        )
        scenario = scenario_of(kept, settings)
    except EndocilError as error:
        return f"preset {preset}: {error}"
    train, test = scenario.counts(TRAIN), scenario.counts(TEST)
    lines = [(f"preset {preset}", "classes", "train", "test", "")]
    for task in scenario.tasks:
        names = ", ".join(kept.classes[task.new])
        n_train, n_test = train[task.new].sum(), test[task.new].sum()
        lines.append((f"task {task.index}", str(task.n_new), f"{n_train:,}", f"{n_test:,}", names))
    lines.append(("all", str(len(kept.classes)), f"{train.sum():,}", f"{test.sum():,}", ""))
    return _aligned(lines)


def _aligned(lines: list[tuple[str, ...]] | list[tuple[str, str, str, str, str]]) -> str:
    """Columns of text; numbers to the right, the first and the last column to the left."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in (0, len(widths) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
