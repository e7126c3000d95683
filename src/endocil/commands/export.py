"""endocil export: a bundle as an ONNX file."""

from pathlib import Path
from typing import Annotated

import typer

from endocil.commands.common import say


def export(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle, made by 'endocil bundle'.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The ONNX file to write.")],
    trust: Annotated[
        bool, typer.Option("--trust", help="Run code of other packages that the bundle names.")
    ] = False,
) -> None:
    """Write a bundle's model as ONNX, compared with torch on the bundle's own images before it is kept."""
    from endocil.export import TOLERANCE
    from endocil.export import export as write_onnx
    from endocil.notice import NOTICE

    made = write_onnx(bundle, output, trust=trust)
    pictures = f"{made.pictures} {'drawn pictures' if made.generated else 'images of the bundle'}"
    say(f"wrote {made.path}: {', '.join(made.outputs)}")
    say(f"like torch on {pictures}: differs by at most {made.difference:.1e} (allowed: {TOLERANCE:.0e})")
    say(NOTICE)
