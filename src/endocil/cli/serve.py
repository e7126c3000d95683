"""endocil serve: bundles over HTTP, for programs and for people."""

from pathlib import Path
from typing import Annotated

import typer

from endocil.cli.common import say
from endocil.errors import EndocilError


def serve(
    bundles: Annotated[
        list[Path],
        typer.Argument(metavar="BUNDLE...", help="Bundles; the first answers unless another is asked for."),
    ],
    models: Annotated[
        Path | None,
        typer.Option("--models", metavar="FOLDER", help="Bundles in it may take the place of a model."),
    ] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="FOLDER", help="Runs whose reports may be read.")
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            "--host", help="Where to listen; another address than this machine's own needs a token."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 8000,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name", metavar="NAME", help="A name that the server has in the network; may be repeated."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="Holds the token that clients must show; or set ENDOCIL_TOKEN.",
        ),
    ] = None,
    upload_megabytes: Annotated[float, typer.Option("--upload-megabytes", help="Of one request.")] = 32.0,
    images: Annotated[int, typer.Option("--images", help="Of one request.")] = 64,
    megapixels: Annotated[float, typer.Option("--megapixels", help="Of one image.")] = 50.0,
    request_megapixels: Annotated[
        float, typer.Option("--request-megapixels", help="Of all images of one request.")
    ] = 400.0,
    upload_seconds: Annotated[
        float, typer.Option("--upload-seconds", help="Until a request is here whole.")
    ] = 30.0,
    answer_seconds: Annotated[float, typer.Option("--answer-seconds", help="Until it is answered.")] = 60.0,
    connections: Annotated[
        int, typer.Option("--connections", help="Open at once; more are turned away.")
    ] = 256,
    queue: Annotated[
        int,
        typer.Option(
            "--queue",
            help="Images that are decoded or wait, counted for each model; more are refused for now.",
        ),
    ] = 256,
    batch: Annotated[int, typer.Option("--batch", help="Images of one forward pass.")] = 32,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run code of other packages that bundles name.")
    ] = False,
) -> None:
    """Serve bundles: an API with its documentation, and a page to drop images on. Not for clinical use."""
    try:
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise EndocilError(
            f"serving needs {error.name}; install it by: pip install 'endocil[serve]'"
        ) from error
    from endocil.model.disclaimer import NOTICE
    from endocil.serve.app import application
    from endocil.serve.guard import refuse_open_doors, token_from
    from endocil.serve.limits import Limits
    from endocil.serve.logs import Log
    from endocil.serve.server import serve as serve_until_stopped
    from endocil.serve.service import service_of

    token = token_from(token_file)
    refuse_open_doors(host, token)
    limits = Limits(
        upload_megabytes=upload_megabytes,
        images=images,
        megapixels=megapixels,
        request_megapixels=request_megapixels,
        upload_seconds=upload_seconds,
        answer_seconds=answer_seconds,
        connections=connections,
        queue=queue,
        batch=batch,
    )
    service = service_of(bundles, models, runs, limits, trust=trust)
    for loaded in service.models.all():
        for note in loaded.bundle.notes:
            say(f"{loaded.file}: {note}")
    log = Log()
    app = application(service, token=token, names=frozenset(one.lower() for one in name or ()), log=log)

    def started(address: str) -> None:
        say(f"{NOTICE} Listening on {address} (documentation: {address}/docs); stop with Ctrl-C.")

    serve_until_stopped(app, host, port, limits, log, started)
