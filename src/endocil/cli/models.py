"""endocil bundle, predict, learn, memory, forget and export: a trained model in use.

Each takes a model file, or the folder of a finished run, which holds one."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from endocil.cli.common import Overrides, Run, console, fail, say
from endocil.errors import FileFormatError, SettingsError
from endocil.io.terminal import printable

if TYPE_CHECKING:
    from endocil.methods import Method
    from endocil.model.file import ModelFile
    from endocil.model.inference import Predicted
    from endocil.model.model import Model as LivingModel


Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A model file, or the folder of a finished run.")
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Let the model run code of other packages that it names.")
]
Licence = Annotated[str, typer.Option("--licence", help="Under which the images may be kept and used.")]
Consent = Annotated[str, typer.Option("--consent", help="What the patients have agreed to.")]


def bundle(
    folder: Run,
    output: Annotated[Path, typer.Option("-o", "--output", help="The model file, such as model.endocil.")],
    held_out: Annotated[
        int | None, typer.Option("--held-out", min=0, help="Held-out images of each class, at most.")
    ] = None,
    without_exemplars: Annotated[
        bool, typer.Option("--without-exemplars", help="No images inside: it predicts but cannot learn.")
    ] = False,
    licence: Licence = "",
    consent: Consent = "",
    ood_rate: Annotated[
        float, typer.Option("--ood-rate", help="Share of images of known classes that may be flagged.")
    ] = 0.05,
    name: Annotated[str, typer.Option("--name", help="Of the model; by default the run's.")] = "",
    trust: Trust = False,
) -> None:
    """Pack a finished run's model for others: with its results, terms of use, and as many images as allowed."""
    from endocil.model.manifest import LONGEST_NAME, terms_of
    from endocil.model.model import Model
    from endocil.reports.model_results import results_of
    from endocil.runs.folder import RunFolder
    from endocil.runs.records import read_run

    if not 0 < ood_rate < 1:
        raise SettingsError(f"--ood-rate is {ood_rate}; expected a share between 0 and 1, such as 0.05")
    if len(name) > LONGEST_NAME:
        raise SettingsError(f"--name has {len(name):,} characters; expected at most {LONGEST_NAME:,}")
    if output.exists():
        raise SettingsError(
            f"{output} is there already; a model file is never written over, choose another name"
        )
    here = RunFolder(folder)
    here.settings()  # refuses what is not a run
    if not here.finished():
        raise FileFormatError(f"the run {folder} is not finished; go on with 'endocil resume {folder}'")
    terms = terms_of(licence, consent)
    model = Model.load(folder, trust=trust)
    model.pack(
        name=name,
        metrics=results_of(read_run(folder)),
        terms=terms,
        held_out=held_out,
        with_exemplars=not without_exemplars,
        ood_rate=ood_rate,
    )
    model.save(output)
    _describe(model, output)


def _describe(model: "LivingModel", output: Path) -> None:
    """What a new model file holds, and what it cannot do."""
    say(
        f"{output}: {len(model.classes)} classes, {len(model.exemplars):,} exemplars, "
        f"{len(model.held_out):,} held-out images, {output.stat().st_size / 1e6:.1f} MB"
    )
    fitted = model.manifest.calibration
    if fitted is not None:
        say(
            f"calibrated on {fitted.images:,} held-out images: expected calibration error {fitted.error_before:.3f} "
            f"before, {fitted.error:.3f} after (cross-fitted, {fitted.folds} folds)"
        )
    for note in model.limits():
        say(f"note: {note}")
    say(f"sha256 {model.digest}")


def predict(
    model: Model,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGES...", help="Images, a folder, or a CSV file of paths.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The CSV file of the predictions.")],
    top: Annotated[int, typer.Option("--top", min=1, help="Classes named for each image.")] = 3,
    reasons: Annotated[int, typer.Option("--reasons", min=0, help="Nearest exemplars of each image.")] = 3,
    gradcam: Annotated[
        Path | None, typer.Option("--gradcam", help="A new folder for images of where the evidence lies.")
    ] = None,
    trust: Trust = False,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Images at a time.")] = 64,
) -> None:
    """Classify images: probabilities, a flag for out-of-distribution images, and the nearest exemplars."""
    from endocil.io.terminal import plain_progress
    from endocil.model.inference import write_predicted
    from endocil.model.model import Model

    loaded = Model.load(model, trust=trust)
    inputs = loaded.inputs(images[0] if len(images) == 1 else images)
    _refuse_inputs(output, [model, *images, *inputs.files])
    for note in loaded.notes:
        say(f"note: {note}")
    ask = partial(
        loaded.predict,
        inputs,
        top=top,
        reasons=reasons,
        batch=batch,
        progress=plain_progress(console(), "predicting"),
    )
    found, drawn = (ask(), tuple[str, ...]()) if gradcam is None else _drawn(ask, loaded.method, gradcam)
    write_predicted(output, found, loaded.exemplars, drawn)
    _tell(found, output)


def _drawn(
    ask: Callable[..., "Predicted"], method: "Method", folder: Path
) -> tuple["Predicted", tuple[str, ...]]:
    """Grad-CAM in the same pass; the folder is whole or not there."""
    from torch import Tensor

    from endocil.io.files import filling_folder
    from endocil.model.attention import draw

    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise SettingsError(
            f"{folder} is a file, or a folder that is not empty; choose another with --gradcam"
        )
    drawn: list[str] = []
    with filling_folder(folder) as temporary:

        def watch(names: tuple[str, ...], pixels: Tensor, classes: Tensor) -> None:
            files = [_file_name(len(drawn) + i, name) for i, name in enumerate(names)]
            draw(temporary, files, method, pixels, classes)
            drawn.extend(files)

        found = ask(watch=watch)
    return found, tuple(drawn)


def _file_name(number: int, name: str) -> str:
    """A number, so that names of other folders cannot meet, and as much of the name as any system takes."""
    stem = Path(name.replace("\\", "/")).stem
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in stem)
    return f"{number:06d}-{plain[:60]}.png"


def _refuse_inputs(output: Path, inputs: list[Path]) -> None:
    """What is read is never written over."""
    if output.is_dir():
        raise SettingsError(f"{output} is a folder; expected the name of a CSV file")
    if output.exists() and any(path.exists() and os.path.samefile(output, path) for path in inputs):
        raise SettingsError(f"{output} is read by this command; choose another file with -o")


def _tell(found: "Predicted", output: Path) -> None:
    flags = found.out_of_distribution
    flagged = "" if flags is None else f", {int(flags.sum()):,} of them out of distribution"
    say(f"{output}: {len(found):,} images{flagged}")
    if found.unreadable:
        name, reason = found.unreadable[0]
        say(
            f"{len(found.unreadable):,} images cannot be read and are listed there, first {printable(name)}: {reason}"
        )


def learn(
    model: Model,
    new: Annotated[
        Path,
        typer.Argument(metavar="NEW", help="A folder with a folder for each class, or a CSV list of images."),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The new model file; must not be there yet.")
    ],
    changes: Overrides = None,
    validation: Annotated[
        float | None,
        typer.Option("--validation", help="Share of the new images held out; by default as in the run."),
    ] = None,
    held_out: Annotated[
        int | None, typer.Option("--held-out", min=0, help="Held-out images of each class, at most.")
    ] = None,
    licence: Licence = "",
    consent: Consent = "",
    groups: Annotated[
        str | None,
        typer.Option(
            "--groups",
            help="What belongs together: given, near-duplicates, a CSV file, or a pattern on the path.",
        ),
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option("--accelerator", help="Where to learn: cpu, gpu, ...; by default as the run."),
    ] = None,
    work: Annotated[
        Path | None, typer.Option("--work", help="Where a stopped step is kept; by default OUTPUT.learning.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Learn new classes, and more images of known ones, into a new model. Stopped, the same command goes on."""
    from endocil.io.terminal import Display, plain_progress
    from endocil.model.manifest import terms_of
    from endocil.runs.learn import learn as learn_into
    from endocil.runs.learn import work_folder_of

    chosen = [*(changes or ()), *([f"run.accelerator={accelerator}"] if accelerator else [])]
    screen = console()
    try:
        with Display(screen, output.stem) as display:
            learned = learn_into(
                model,
                new,
                output,
                changes=chosen,
                validation=validation,
                terms=terms_of(licence, consent),
                groups=groups,
                held_out=held_out,
                work=work,
                trust=trust,
                show=display,
                tell=say,
                progress=plain_progress(screen, "reading the data"),
            )
    except KeyboardInterrupt:
        kept = work or work_folder_of(output)
        fail(f"stopped; {kept} holds all up to the last checkpoint. Go on with the same command", 130)
    _describe(learned, output)
    say("note: not tested yet; compare it with the model before by 'endocil compare'")


def memory(
    model: Model,
    sheet: Annotated[
        Path | None, typer.Option("--sheet", help="Draw the images: a .png or .jpg, or a folder.")
    ] = None,
    listing: Annotated[
        Path | None, typer.Option("--csv", help="Write every image and where it comes from into this file.")
    ] = None,
    every: Annotated[bool, typer.Option("--list", help="Show every image on the screen.")] = False,
) -> None:
    """Show which images a model holds, by class, with where they come from and how large they are."""
    from endocil.model.contact_sheet import listed, write_list, write_sheet
    from endocil.model.file import read_model_file

    content = read_model_file(model)
    _show_memory(content, model)
    for row in listed(content) if every else ():
        say("  ".join(str(cell) for cell in row if cell != ""))
    if listing is not None:
        write_list(listing, content)
        say(f"{listing}: {len(listed(content)):,} images")
    for file in write_sheet(sheet, content) if sheet is not None else ():
        say(f"{file}: {file.stat().st_size:,} bytes")


def _show_memory(content: "ModelFile", model: Path) -> None:
    from endocil.model.contact_sheet import counts
    from endocil.model.file import model_path

    exemplars, held_out = content.exemplars.provenance, content.held_out.provenance
    inside = (content.exemplars.pixels.numel() + content.held_out.pixels.numel()) / 1e6
    say(
        f"{model}: {len(exemplars):,} exemplars and {len(held_out):,} held-out images of {len(content.classes)} "
        f"classes; the file has {model_path(model).stat().st_size / 1e6:.1f} MB, the images decoded {inside:.1f} MB"
    )
    for learned in content.manifest.classes:
        mine = [one for one in exemplars if one.class_name == learned.name]
        held = [one for one in held_out if one.class_name == learned.name]
        say(
            f"  {learned.name} (task {learned.task}): {len(mine)} exemplars of {learned.images:,} images, "
            f"{len(held)} held out; groups: {counts([*mine, *held], 'group', 4) or 'none'}"
        )
    both = (*exemplars, *held_out)
    for field in ("group", "source", "licence", "consent") if both else ():
        say(f"by {field}: {counts(both, field)}")
    said = content.manifest.terms
    if said.licence or said.consent:
        say(
            f"terms of the model: licence {said.licence or 'not stated'}; consent {said.consent or 'not stated'}"
        )


def forget(
    model: Model,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The new model file; must not be there yet.")
    ],
    group: Annotated[
        list[str] | None, typer.Option("--group", help="A patient or video; may be given again.")
    ] = None,
    image: Annotated[
        list[str] | None, typer.Option("--image", help="An image's id; may be given again.")
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option("--source", help="A device or centre; may be given again.")
    ] = None,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Also where a class is left without exemplars.")
    ] = False,
    trust: Trust = False,
) -> None:
    """Take images out of a model into a new one, and say what still saw them."""
    from endocil.model.file import read_model_file, write_model_file
    from endocil.model.forget import forget as without
    from endocil.runs.learn import refuse_existing

    refuse_existing(output)
    asked = {"groups": group or (), "images": image or (), "sources": source or ()}
    found = without(read_model_file(model), **asked, allow_empty=allow_empty, trust=trust)
    digest = write_model_file(output, found.content)
    say(f"{output}: without {found.exemplars:,} exemplars and {found.held_out:,} held-out images")
    for line in found.lines:
        say(line)
    say(f"the model before still holds them: {model}")
    say(f"sha256 {digest}")


def export(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The ONNX file to write.")],
    trust: Trust = False,
) -> None:
    """Write a model as ONNX, compared with torch on the model's own images before it is kept."""
    from endocil.model.disclaimer import DISCLAIMER
    from endocil.model.onnx import TOLERANCE
    from endocil.model.onnx import export as write_onnx

    made = write_onnx(model, output, trust=trust)
    compared = f"{made.pictures} {'synthetic images' if made.generated else 'images of the model'}"
    say(f"wrote {made.path}: {', '.join(made.outputs)}")
    say(f"like torch on {compared}: differs by at most {made.difference:.1e} (allowed: {TOLERANCE:.0e})")
    say(DISCLAIMER)
