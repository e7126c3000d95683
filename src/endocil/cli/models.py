"""endocil predict, learn, export and serve: a trained model in use."""

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from endocil.cli.console import (
    Consent,
    Force,
    Licence,
    ModelPath,
    Overrides,
    Trust,
    console,
    describe_model,
    fail,
    refuse_overwriting,
    say,
)
from endocil.errors import ResourceError, SettingsError
from endocil.io.files import filling_folder, refuse_existing
from endocil.io.process import exit_status
from endocil.io.terminal import Display, plain_progress, printable

if TYPE_CHECKING:
    from torch import Tensor


def predict(
    model: ModelPath,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES", help="Images, a folder, or a CSV file of paths.")],
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
    from endocil.model.prediction_files import Decided, write_prediction_list

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
        say(f"cannot be read and marked there: {number:,}, first {printable(name)}: {reason}")


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
    model: ModelPath,
    new: Annotated[
        Path,
        typer.Argument(
            metavar="IMAGES",
            help="A folder with a folder for each class (or, with --class, of images alone), or a CSV list of images.",
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
    describe_model(learned, output)
    say("note: not tested yet; compare it with its parent: endocil compare OLD NEW TEST")


def export(
    model: ModelPath,
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
    allowed = f"{TOLERANCE:.0e}, and {TOLERANCE:.0e} of the value"
    say(f"agrees with torch on {compared}: largest difference {made.difference:.1e} (allowed: {allowed})")
    say(DISCLAIMER)


def serve(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL", help="Model files; the first is used unless a request names another."),
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
