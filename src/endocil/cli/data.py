"""endocil data: public data sets (where, check), audit, synthetic images (synth, sheet), and the cache."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from endocil.cli.console import Force, Overrides, console, say
from endocil.errors import DataError, EndocilError, SettingsError
from endocil.io.files import cache_folder, refuse_existing, write_atomically, write_csv, write_json
from endocil.io.terminal import aligned, plain_progress

if TYPE_CHECKING:
    from endocil.audit.findings import Record
    from endocil.data.table import ImageTable
    from endocil.settings.settings import Settings


def synth(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to write; it must be new or empty.")],
    images: Annotated[int, typer.Option(help="Number of images.")] = 2000,
    size: Annotated[int, typer.Option(help="Width and height in pixels.", min=16)] = 128,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    imbalance: Annotated[float, typer.Option(help="Size of the largest class divided by that of the smallest.")] = 10.0,
) -> None:
    """Write synthetic endoscopic images as PNG files, in one folder per class."""
    from endocil.datasets.synthetic import write_folder

    write_folder(
        folder, seed=seed, size=size, images=images, imbalance=imbalance, progress=plain_progress(console(), "images")
    )
    say(f"wrote {images:,} images to {folder}")


def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Delete everything in the cache. Do not use it during a run.")
    ] = False,
) -> None:
    """Show the cache of decoded images, extracted archives and features of frozen backbones, or delete it."""
    from collections import Counter

    from endocil.data.cache import clear as remove
    from endocil.data.cache import contents

    folder = cache_folder()
    say(f"{folder} (to use another folder, set ENDOCIL_CACHE)")
    entries = contents(folder)
    number, size = Counter(entry.kind for entry in entries), Counter[str]()
    for entry in entries:
        size[entry.kind] += entry.size
        if entry.path.is_dir():
            say(f"  {entry.path.name}: {entry.size:,} bytes")
    for kind, n in sorted(number.items()):
        say(f"{kind}: {n:,}, {size[kind]:,} bytes")
    if clear:
        say(f"{remove(folder):,} bytes freed")
    else:
        say(f"total: {size.total():,} bytes")


def sheet(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The image file to write, .jpg or .png.")],
    size: Annotated[int, typer.Option(help="Width and height of each image in pixels.", min=16)] = 80,
    per_class: Annotated[int, typer.Option(help="Number of images per class.", min=1)] = 9,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    force: Force = False,
) -> None:
    """Draw a contact sheet of synthetic endoscopic images: one row per class, with images of all devices."""
    from io import BytesIO

    from endocil.datasets.synthetic import contact_sheet

    kinds = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG"}
    if file.suffix.lower() not in kinds:
        raise SettingsError(f"{file} is not the name of an image file; expected one that ends in .jpg or .png")
    refuse_existing(file, force=force)
    image = BytesIO()
    contact_sheet(seed, size, per_class).save(image, kinds[file.suffix.lower()], quality=85)
    write_atomically(file, image.getvalue())
    say(f"{file}: {len(image.getvalue()):,} bytes")


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="hyper-kvasir, gastrovision, kvasir-capsule, capsule-vision or cifar100.")
]


def where(name: Name) -> None:
    """Show where to get a public data set, its terms, where to put it, and the tasks of its presets."""
    from endocil.datasets.public.facts import describe, find, published_table

    facts = find(name)
    say(describe(facts))
    for preset in facts.presets:
        say(f"\n{_task_table(preset, published_table(facts))}")


def check(
    name: Name,
    root: Annotated[Path, typer.Argument(metavar="ROOT", help="The downloaded folder or archive.")],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the data set, e.g. data.test=FOLDER."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Read only the headers of the images; truncated files are not detected.")
    ] = False,
) -> None:
    """Check that a download is complete: compare it with the published numbers of images, and decode every image."""
    from endocil.datasets import load_table
    from endocil.datasets.public.facts import check_archive, check_classes, find, find_unreadable
    from endocil.io.archives import extract
    from endocil.settings.settings import load_settings

    facts, damaged = find(name), False
    options = load_settings(facts.presets[0], changes or ()).data.options | {"root": str(root)}
    if root.is_file():
        verdict, damaged = check_archive(facts, root, plain_progress(console(), "bytes of the archive"))
        say(verdict)
        extracted = extract(root, progress=plain_progress(console(), "bytes extracted"), also=facts.files)
        say(f"{extracted.files:,} files in {extracted.folder}")
    table = load_table(name, options, plain_progress(console(), "bytes extracted"))
    unreadable = find_unreadable(table, plain_progress(console(), "images checked"), quick=quick)
    rows = check_classes(facts, table, unreadable)
    parts = any(row.part for row in rows)
    lines = [("class", *(["part"] if parts else []), "published", "found", "")]
    for row in rows:
        lines.append((row.label, *([row.part] if parts else []), f"{row.expected:,}", f"{row.found:,}", row.verdict))
    say(aligned(lines, right=range(1, len(lines[0]) - 1)))
    for note in table.notes:
        say(note)
    for image, reason in list(unreadable.items())[:20]:
        say(f"unreadable: {image}: {reason}")
    for preset in facts.presets:
        say(f"\n{_task_table(preset, table)}")
    short = sum(row.verdict != "complete" for row in rows)
    if short or damaged:
        raise DataError(
            f"{root} is not the published {facts.title}: {short} of {len(rows)} classes differ"
            f"{', and the archive is damaged' if damaged else ''}; see the table, or download it again"
        )
    extent = "; only their headers were read" if quick else ", all of them decoded"
    say(f"{root}: complete, {len(table):,} images{extent}")


def _task_table(preset: str, table: "ImageTable") -> str:
    """The tasks of a preset with their training and test images: Table 1 of the paper, where the data is complete."""
    from endocil.data.splits import TEST, TRAIN
    from endocil.runs.parts import scenario_of, with_kept_classes
    from endocil.settings.settings import load_settings

    settings = load_settings(preset)
    try:
        kept = with_kept_classes(table, settings)
        scenario = scenario_of(kept, settings)
    except EndocilError as error:
        return f"preset {preset}: {error}"
    train, test = scenario.counts(TRAIN), scenario.counts(TEST)
    lines = [(f"preset {preset}", "classes", "train", "test", "")]
    for task in scenario.tasks:
        names = ", ".join(kept.classes[task.new])
        n_train, n_test = train[task.new].sum(), test[task.new].sum()
        lines.append((f"task {task.number}", str(task.n_new), f"{n_train:,}", f"{n_test:,}", names))
    lines.append(("all", str(len(kept.classes)), f"{train.sum():,}", f"{test.sum():,}", ""))
    return aligned(lines, right=range(1, len(lines[0]) - 1))


def audit(
    source: Annotated[
        str, typer.Argument(metavar="SETTINGS", help="A preset, a settings file (TOML), or a folder of images.")
    ],
    changes: Overrides = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The HTML page to write; a JSON file is written beside it.")
    ] = Path("audit.html"),
    groups: Annotated[
        Path | None,
        typer.Option(help='Write the groups of near duplicates as a CSV file, for scenario.groups = "FILE.csv".'),
    ] = None,
    pictures: Annotated[bool, typer.Option(help="Show images on the page. They are images of patients.")] = True,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with status 2 if any test image also occurs in the training part.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the files if they exist.")] = False,
) -> None:
    """Find unreadable files, duplicates, and test images that also occur in the training part."""
    from endocil.audit.findings import leaks_exist, lines
    from endocil.audit.page import page, pictures_of
    from endocil.data.near_duplicates import near_duplicate_groups
    from endocil.datasets import load_table
    from endocil.learning.build import complete
    from endocil.settings.settings import load_settings

    for written in filter(None, (output, output.with_suffix(".json"), groups)):
        refuse_existing(written, force=force)
    split = not Path(source).is_dir()
    if split:
        settings = complete(load_settings(source, changes or ()).trusted())
    else:  # a folder of images has no tasks and no split, and need not be sorted into classes
        data = {"name": "endocil.datasets.folder:load_any", "root": source}
        settings = load_settings({"data": data}, changes or ()).trusted()
    table, record = _audit(Path(source).resolve().stem, settings, split)
    write_atomically(output, page(record, pictures_of(table) if pictures else None))
    write_json(output.with_suffix(".json"), record)
    for line in (*lines(record), *record["notes"], f"page: {output}"):
        say(line)
    if groups is not None:  # of every image of the data, also of classes left out: other settings may keep them
        progress = plain_progress(console(), "reading all images")
        everything = load_table(settings.data.name, settings.data.options, progress)
        names = near_duplicate_groups(everything, progress=progress)
        write_csv(groups, ("path", "group"), zip(everything.ids, names, strict=True))
        say(f"groups: {groups}")
    if strict and leaks_exist(record):
        raise typer.Exit(2)


def _audit(title: str, settings: "Settings", split: bool) -> "tuple[ImageTable, Record]":
    """The readable images of the kept classes, and the findings among them."""
    from dataclasses import replace

    import numpy as np

    from endocil.audit.findings import summary
    from endocil.data.fingerprints import fingerprints
    from endocil.data.near_duplicates import near_duplicates_of
    from endocil.runs.parts import kept_table, scenario_of

    screen = console()
    whole = kept_table(settings, plain_progress(screen, "finding images"))
    all_prints = fingerprints(whole, progress=plain_progress(screen, "reading images"))
    # as a run: readable images of classes that are large enough without the unreadable ones
    counts = np.bincount(whole.labels[all_prints.readable], minlength=len(whole.classes))
    rows = np.flatnonzero(all_prints.readable & (counts >= max(1, settings.scenario.minimum))[whole.labels])
    if not len(rows):
        name, reason = all_prints.unreadable[0]
        raise DataError(f"no image can be read, of {len(whole):,}; {name}: {reason}")
    table, prints = whole.take(rows), all_prints.take(rows)
    table = table.keep_classes([whole.classes[label] for label in sorted(set(table.labels.tolist()))])
    near = near_duplicates_of(table, prints, progress=plain_progress(screen, "comparing images, blocks"))
    if len(table.classes) == 1:
        way_out = "" if split else "; to use the folders that hold images as classes: --set data.class_from=leaf"
        table = replace(table, notes=(*table.notes, f"All images are of one class, {table.classes[0]}{way_out}."))
    scenario = scenario_of(table, settings) if split else None
    return table, summary(title, table, prints, near, scenario, all_prints.unreadable)
