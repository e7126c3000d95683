"""endocil serve: models over HTTP, for programs and for people."""

from pathlib import Path
from typing import Annotated

import typer

from endocil.cli.common import say
from endocil.errors import ResourceError


def serve(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL...", help="Model files; the first is used unless a request names another."
        ),
    ],
    folder: Annotated[
        Path | None,
        typer.Option("--models", metavar="FOLDER", help="Model files that can replace a model meanwhile."),
    ] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="FOLDER", help="Runs whose reports can be read.")
    ] = None,
    host: Annotated[
        str,
        typer.Option("--host", help="Address to listen on; any but this machine's own needs a token."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free port.")] = 8000,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="NAME", help="A host name of this server; may be repeated."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with the token that clients must send; or set ENDOCIL_TOKEN.",
        ),
    ] = None,
    upload_megabytes: Annotated[float, typer.Option("--upload-megabytes", help="Of one request.")] = 32.0,
    images: Annotated[int, typer.Option("--images", help="Of one request.")] = 64,
    megapixels: Annotated[float, typer.Option("--megapixels", help="Of one image.")] = 50.0,
    request_megapixels: Annotated[
        float, typer.Option("--request-megapixels", help="Of all images of one request.")
    ] = 400.0,
    upload_seconds: Annotated[
        float, typer.Option("--upload-seconds", help="Until a request has arrived.")
    ] = 30.0,
    answer_seconds: Annotated[float, typer.Option("--answer-seconds", help="Until it is answered.")] = 60.0,
    connections: Annotated[int, typer.Option("--connections", help="Open at once; more are refused.")] = 256,
    queue: Annotated[
        int,
        typer.Option(
            "--queue",
            help="Images being decoded or waiting, counted for each model; more are refused for now.",
        ),
    ] = 256,
    batch: Annotated[int, typer.Option("--batch", help="Images of one forward pass.")] = 32,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run code of other packages that models name.")
    ] = False,
) -> None:
    """Serve models: an API with documentation, and a page to drop images on. Not for clinical use."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ResourceError(
            f"serving needs {error.name}; install it by: pip install 'endocil[serve]'"
        ) from error
    from endocil.model.disclaimer import DISCLAIMER
    from endocil.serve.app import create_app
    from endocil.serve.guard import read_token, require_token
    from endocil.serve.limits import Limits
    from endocil.serve.monitoring import Log
    from endocil.serve.server import serve as serve_until_stopped
    from endocil.serve.service import create_service

    token = read_token(token_file)
    require_token(host, token)
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
    service = create_service(models, folder, runs, limits, trust=trust)
    for model in service.models.all():
        for note in model.notes:
            say(f"{model.file}: {note}")
    log = Log()
    app = create_app(service, token=token, names=frozenset(own.lower() for own in name or ()), log=log)

    def started(address: str) -> None:
        say(f"{DISCLAIMER} Listening on {address} (documentation: {address}/docs); stop with Ctrl-C.")

    serve_until_stopped(app, host, port, limits, log, started)
