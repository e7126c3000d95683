"""endocil bundle, predict, learn, memory, forget, export and serve: a trained model in use.

Each takes a model file, or the folder of a finished run, which holds one."""

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from endocil.cli.console import Overrides, Run, Trust, console, fail, refuse_overwriting, say
from endocil.errors import ResourceError, SettingsError
from endocil.io.files import filling_folder, refuse_existing
from endocil.io.stopping import exit_status
from endocil.io.terminal import Display, plain_progress, printable

if TYPE_CHECKING:
    from torch import Tensor

    from endocil.model.model import Model as LivingModel

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model file, or the folder of a finished run.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")]
Licence = Annotated[str, typer.Option(help="Licence under which the images may be kept and used.")]
Consent = Annotated[str, typer.Option(help="What the patients have agreed to.")]


def bundle(
    folder: Run,
    output: Annotated[Path, typer.Option("-o", "--output", help="The model file, such as model.endocil.")],
    held_out: Annotated[
        int | None, typer.Option(min=0, help="Keep at most this many held-out images per class.")
    ] = None,
    without_exemplars: Annotated[
        bool, typer.Option("--without-exemplars", help="Leave out all images: the model predicts but cannot learn.")
    ] = False,
    licence: Licence = "",
    consent: Consent = "",
    ood_rate: Annotated[float, typer.Option(help="Share of images of known classes that may be flagged.")] = 0.05,
    name: Annotated[str, typer.Option(help="Name of the model; by default that of the run.")] = "",
    trust: Trust = False,
) -> None:
    """Pack a finished run's model for others, with results and terms of use, and with or without images."""
    from endocil.model.manifest import LONGEST_NAME, terms_of
    from endocil.model.model import Model
    from endocil.reports.comparisons import results_of
    from endocil.runs.records import read_run

    if not 0 < ood_rate < 1:
        raise SettingsError(f"--ood-rate is {ood_rate}; expected a share between 0 and 1, such as 0.05")
    if len(name) > LONGEST_NAME:
        raise SettingsError(f"--name has {len(name):,} characters; expected at most {LONGEST_NAME:,}")
    refuse_existing(output)
    record = read_run(folder)  # refuses an unfinished run, and a folder that is none
    model = Model.load(folder, trust=trust)
    model.pack(
        name=name,
        metrics=results_of(record),
        terms=terms_of(licence, consent),
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
    if fitted is not None and fitted.improved:
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
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The CSV file of the predictions; missing folders are created.")
    ],
    top: Annotated[int, typer.Option(min=1, help="How many classes to list per image.")] = 3,
    reasons: Annotated[int, typer.Option(min=0, help="How many nearest exemplars to list per image.")] = 3,
    gradcam: Annotated[
        Path | None, typer.Option(help="A new folder for images, in their own size, that show where the evidence lies.")
    ] = None,
    coverage: Annotated[
        float, typer.Option(help="Probability with which the column prediction_set holds the right class.")
    ] = 0.9,
    sensitivity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLASS=SHARE",
            help="Required sensitivity of a class, such as polyp=0.95: the column decision then names it for every "
            "image above its threshold; may be repeated.",
        ),
    ] = None,
    force: Force = False,
    trust: Trust = False,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 64,
) -> None:
    """Classify images: probabilities, a flag for out-of-distribution images, and the nearest exemplars."""
    from endocil.data.resize import original_of
    from endocil.model.gradcam import draw
    from endocil.model.model import Model
    from endocil.model.operating_points import operating_point
    from endocil.model.predictions import Decided, write_prediction_list

    required = _required_sensitivities(sensitivity or ())
    if not 0.0 < coverage < 1.0:
        raise SettingsError(f"--coverage is {coverage:g}; expected a share between 0 and 1, such as 0.9")
    began = datetime.now(UTC).isoformat(timespec="seconds")
    loaded = Model.load(model, trust=trust)
    if loaded.calibration is not None and loaded.calibration.scores is not None:
        for name, share in required.items():  # refused before all images are predicted
            operating_point(loaded.calibration.scores, name, share)
    inputs = loaded.inputs(images[0] if len(images) == 1 else images)
    refuse_overwriting(output, [model, *images, *inputs.files])
    refuse_existing(output, force=force)
    if gradcam is not None and (gradcam.is_file() or (gradcam.is_dir() and any(gradcam.iterdir()))):
        raise SettingsError(f"{gradcam} is a file, or a folder that is not empty; choose another with --gradcam")
    for note in loaded.notes:
        say(f"note: {note}")
    drawn: list[str] = []
    id_of = dict(zip(inputs.names, inputs.ids, strict=True))
    progress = plain_progress(console(), "predicting")
    with nullcontext() if gradcam is None else filling_folder(gradcam) as folder:  # which is complete or absent

        def draw_gradcam(names: tuple[str, ...], pixels: "Tensor", classes: "Tensor") -> None:
            assert folder is not None
            files = [_file_name(len(drawn) + i, name) for i, name in enumerate(names)]
            data = loaded.settings.data
            draw(
                folder,
                files,
                loaded.method,
                pixels,
                classes,
                original=lambda row: original_of(inputs.reader, id_of[names[row]]),
                crop_frame=data.crop_frame,
                fit=data.fit,
            )
            drawn.extend(files)

        watch = None if folder is None else draw_gradcam
        predictions = loaded.predict(inputs, top=top, reasons=reasons, batch=batch, progress=progress, on_batch=watch)
    decided = Decided(loaded.digest, began, inputs.class_names, coverage, required)
    write_prediction_list(output, predictions, loaded.exemplars, tuple(drawn), decided=decided)
    for point in predictions.operating_points(required).values() if required else ():
        low, high = point.interval
        say(
            f"{point.class_name}: from a probability of {point.threshold:.3g} on, before calibration; sensitivity "
            f"{100 * point.expected:.1f} % expected, {100 * low:.1f} to {100 * high:.1f} % (95 %), by {point.images} "
            f"held-out images"
        )
    flags = predictions.out_of_distribution
    flagged = "" if flags is None else f", {int(flags.sum()):,} of them out of distribution"
    readable = int(predictions.readable.sum())
    say(f"{output}: {readable:,} image{'s' * (readable != 1)}{flagged}")
    if predictions.unreadable:
        name, reason = predictions.unreadable[0]
        number = len(predictions.unreadable)
        say(f"{number:,} images cannot be read and are marked there, first {printable(name)}: {reason}")


def _required_sensitivities(options: Sequence[str]) -> dict[str, float]:
    required = {}
    for option in options:
        name, _, share = option.rpartition("=")
        try:
            required[name] = float(share)
        except ValueError:
            required[name] = 0.0
        if not name or not 0.0 < required[name] < 1.0:
            raise SettingsError(f"--sensitivity {option}: expected CLASS=SHARE between 0 and 1, such as polyp=0.95")
    return required


def _file_name(number: int, name: str) -> str:
    """Unique by its number; of the image's name as much as any system accepts."""
    stem = Path(name.replace("\\", "/")).stem
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in stem)
    return f"{number:06d}-{plain[:60]}.png"


def learn(
    model: Model,
    new: Annotated[
        Path,
        typer.Argument(
            help="A folder with a folder for each class (or, with --class, of images alone), or a CSV list of images."
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The new model file; must not exist.")],
    class_name: Annotated[
        str, typer.Option("--class", metavar="NAME", help="The class of all images of the folder, at any depth.")
    ] = "",
    changes: Overrides = None,
    validation: Annotated[
        float | None, typer.Option(help="Share of the new images held out; by default as in the run.")
    ] = None,
    held_out: Annotated[
        int | None, typer.Option(min=0, help="Keep at most this many held-out images per class.")
    ] = None,
    licence: Licence = "",
    consent: Consent = "",
    groups: Annotated[
        str | None,
        typer.Option(
            help="Which images belong together (patients): given, near-duplicates, a CSV file, or a regular expression "
            "on the path."
        ),
    ] = None,
    accelerator: Annotated[
        str | None, typer.Option(help="Device to train on: cpu, gpu, ...; default: as in the run.")
    ] = None,
    work: Annotated[Path | None, typer.Option(help="Folder of the checkpoint; default OUTPUT.learning.")] = None,
    new_class: Annotated[
        list[str] | None,
        typer.Option(
            "--new-class",
            help="Learn this class as new although a known one has nearly the same name; may be repeated.",
        ),
    ] = None,
    train: Annotated[
        Literal["all", "heads"],
        typer.Option(
            help="What learns: the whole network, as in a run, or the heads alone, every class equally often."
        ),
    ] = "all",
    gate: Annotated[
        Path | None,
        typer.Option(help="Rules (TOML) on the held-out images; if they refuse, nothing is written: exit status 1."),
    ] = None,
    trust: Trust = False,
) -> None:
    """Teach a model new classes, more images of known ones, or both; write a new model and say what it cost. If
    stopped, give the same command again."""
    from endocil.model.manifest import terms_of
    from endocil.release.gate import read_rules
    from endocil.release.learn import learn as learn_into
    from endocil.release.learn import work_folder_of

    rules = read_rules(gate) if gate else None
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
                class_name=class_name,
                new_classes=new_class or (),
                train=train,
                rules=rules,
                trust=trust,
                show=display,
                log=say,
                progress=plain_progress(screen, "reading the data"),
            )
    except KeyboardInterrupt:
        kept = work or work_folder_of(output)
        fail(f"stopped; {kept} keeps what was learned so far. Continue with the same command", exit_status())
    _describe(learned, output)
    say("note: not tested yet; compare it with its parent: endocil compare OLD NEW TEST")


def memory(
    model: Model,
    sheet: Annotated[Path | None, typer.Option(help="Draw the images: a .png or .jpg, or a folder.")] = None,
    listing: Annotated[
        Path | None, typer.Option("--csv", help="Write every image and where it comes from into this file.")
    ] = None,
    every: Annotated[bool, typer.Option("--list", help="Show every image on the screen.")] = False,
) -> None:
    """List the images that a model holds, by class, with their provenance."""
    from endocil.model.file import model_path, read_model_file
    from endocil.model.kept_images import counts, listed, write_list, write_sheet

    content = read_model_file(model)
    exemplars, held_out = content.exemplars.provenance, content.held_out.provenance
    decoded = (content.exemplars.pixels.numel() + content.held_out.pixels.numel()) / 1e6
    say(
        f"{model}: {len(exemplars):,} exemplars and {len(held_out):,} held-out images of {len(content.classes)} "
        f"classes; the file has {model_path(model).stat().st_size / 1e6:.1f} MB, the images decoded {decoded:.1f} MB"
    )
    for learned in content.manifest.classes:
        own = [one for one in exemplars if one.class_name == learned.name]
        held = [one for one in held_out if one.class_name == learned.name]
        say(
            f"  {learned.name} (task {learned.task + 1}): {len(own)} exemplars of {learned.images:,} images, "
            f"{len(held)} held out; groups: {counts([*own, *held], 'group', 4) or 'none'}"
        )
    images = (*exemplars, *held_out)
    for field in ("group", "source", "licence", "consent") if images else ():
        say(f"by {field}: {counts(images, field)}")
    terms = content.manifest.terms
    if terms.licence or terms.consent:
        say(f"terms of the model: licence {terms.licence or 'not stated'}; consent {terms.consent or 'not stated'}")
    for row in listed(content) if every else ():
        say("  ".join(str(cell) for cell in row if cell != ""))
    if listing is not None:
        write_list(listing, content)
        say(f"{listing}: {len(listed(content)):,} images")
    for file in write_sheet(sheet, content) if sheet is not None else ():
        say(f"{file}: {file.stat().st_size:,} bytes")


def forget(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="The new model file; must not exist.")],
    group: Annotated[list[str] | None, typer.Option(help="A patient or video; may be repeated.")] = None,
    image: Annotated[list[str] | None, typer.Option(help="An image's id; may be repeated.")] = None,
    source: Annotated[list[str] | None, typer.Option(help="A device or centre; may be repeated.")] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            help="Learned images, as a folder with a folder for each class or a CSV list: those asked for (or all) "
            "are subtracted from a model of SimpleCIL, RanPAC, Analytic or MultiStage."
        ),
    ] = None,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Allow a class to be left without exemplars or learned images.")
    ] = False,
    trust: Trust = False,
) -> None:
    """Remove images, such as those of a patient, from a model, and say what still depends on them."""
    from endocil.model.file import read_model_file, write_model_file
    from endocil.model.kept_images import forget as without
    from endocil.model.model import Model
    from endocil.release.learn import read_new_images

    refuse_existing(output)
    content, learned = read_model_file(model), None
    if images is not None:
        known = Model.from_file(content, trust=trust)
        learned = read_new_images(images, known, validation=0.0, groups="given").images
    chosen = {"groups": group or (), "images": image or (), "sources": source or ()}
    result = without(content, **chosen, learned=learned, allow_empty=allow_empty, trust=trust)
    digest = write_model_file(output, result.content)
    subtracted = f", and {result.subtracted:,} learned images subtracted" if result.subtracted else ""
    say(f"wrote {output}; removed {result.exemplars:,} exemplars and {result.held_out:,} held-out images{subtracted}")
    for line in result.lines:
        say(line)
    say(f"the old file still holds them: {model}")
    say(f"sha256 {digest}")


def export(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The ONNX file to write.")],
    force: Force = False,
    trust: Trust = False,
) -> None:
    """Export a model to ONNX; the file is written only if its outputs agree with torch's."""
    from endocil.model import DISCLAIMER
    from endocil.model.onnx import TOLERANCE
    from endocil.model.onnx import export as write_onnx

    made = write_onnx(model, output, trust=trust, force=force)
    compared = f"{made.pictures} {'synthetic images' if made.generated else 'images of the model'}"
    say(f"wrote {made.path}: {', '.join(made.outputs)}")
    say(f"agrees with torch on {compared}: largest difference {made.difference:.1e} (allowed: {TOLERANCE:.0e})")
    say(DISCLAIMER)


def serve(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL...", help="Model files; the first is used unless a request names another."),
    ],
    folder: Annotated[
        Path | None,
        typer.Option("--models", metavar="FOLDER", help="Folder of model files that may replace a served model."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File that keeps replaced models over a restart; default: .serving-PORT.json in --models.",
        ),
    ] = None,
    runs: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Runs whose reports can be read.")] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; a token is required for any but localhost.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8000,
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Host name under which clients reach this server; may be repeated."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the token that clients must send; or set ENDOCIL_TOKEN."),
    ] = None,
    session_hours: Annotated[float, typer.Option(help="Hours after which a browser has to sign in again.")] = 12.0,
    https: Annotated[
        bool, typer.Option("--https", help="Clients connect by https through a proxy: send cookies over https only.")
    ] = False,
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address or network of a proxy whose X-Forwarded-For and X-Forwarded-Proto count; may be repeated.",
        ),
    ] = None,
    upload_megabytes: Annotated[float, typer.Option(help="Largest request.")] = 32.0,
    images: Annotated[int, typer.Option(help="Most images of one request.")] = 64,
    megapixels: Annotated[float, typer.Option(help="Largest image.")] = 50.0,
    request_megapixels: Annotated[float, typer.Option(help="Largest sum over the images of one request.")] = 400.0,
    upload_seconds: Annotated[float, typer.Option(help="Time limit for the upload of a request, in seconds.")] = 30.0,
    answer_seconds: Annotated[float, typer.Option(help="Time limit for a response, in seconds.")] = 60.0,
    stop_seconds: Annotated[
        float, typer.Option(help="Time limit for the requests under way after Ctrl-C or SIGTERM, in seconds.")
    ] = 90.0,
    connections: Annotated[
        int, typer.Option(help="Most connections at once; beyond that, those that keep the server waiting are closed.")
    ] = 256,
    queue: Annotated[
        int, typer.Option(help="Images being decoded or waiting, counted for each model; more are refused for now.")
    ] = 256,
    batch: Annotated[int, typer.Option(help="Batch size.")] = 32,
    only_gated: Annotated[
        bool,
        typer.Option(
            "--only-gated",
            help="Put only models into service whose release gate has passed: those that compare --keep has written.",
        ),
    ] = False,
    trust: Trust = False,
) -> None:
    """Serve models: an API with documentation, and a page to drop images on. Not for clinical use.

    The server speaks plain http. For https put a proxy that speaks TLS (nginx, Caddy, Traefik) on the same machine in
    front of it, and add --https --proxy 127.0.0.1 --name HOST --token-file FILE; docs/serve.md has an example."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ResourceError(f"serving needs {error.name}; install it by: pip install 'endocil[serve]'") from error
    from endocil.model import DISCLAIMER
    from endocil.serve.app import create_app
    from endocil.serve.guard import Limits, read_token, require_token
    from endocil.serve.in_service import InService
    from endocil.serve.monitoring import Log
    from endocil.serve.served_models import ServedModels
    from endocil.serve.served_runs import Runs
    from endocil.serve.server import serve as serve_until_stopped
    from endocil.serve.service import Service
    from endocil.serve.sessions import Proxies, Sessions

    token = read_token(token_file)
    require_token(host, token)
    limits = Limits(
        upload_megabytes=upload_megabytes,
        images=images,
        megapixels=megapixels,
        request_megapixels=request_megapixels,
        upload_seconds=upload_seconds,
        answer_seconds=answer_seconds,
        stop_seconds=stop_seconds,
        connections=connections,
        queue=queue,
        batch=batch,
    )
    sessions, proxies = Sessions(3600.0 * session_hours), Proxies.of(proxy or (), https=https)
    if state and not folder:
        raise SettingsError("--state keeps replaced models, which come from the folder --models; give both")
    kept = InService(state or folder / f".serving-{port}.json") if folder else None
    service = Service(
        ServedModels.load(models, folder, trust=trust, kept=kept, only_gated=only_gated), Runs(runs), limits
    )
    for line in service.models.notes:
        say(line)
    for model in service.models.all():
        for note in model.model.notes:
            say(f"{model.file}: {note}")
    log = Log()
    names = frozenset(own.lower() for own in name or ())
    app = create_app(service, token=token, names=names, sessions=sessions, proxies=proxies, log=log)

    def started(address: str) -> None:
        say(f"{DISCLAIMER} Listening on {address} (documentation: {address}/docs); stop with Ctrl-C.")

    serve_until_stopped(app, host, port, limits, log, started)
