"""endocil compare: two versions of a model on the same images, and whether the new one may replace the old one."""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from endocil.cli.common import fail, say
from endocil.cli.tables import Head, OfHead
from endocil.errors import EndocilError, SettingsError

if TYPE_CHECKING:
    from endocil.release.versions import Evaluation, Progress

REFUSED, ERROR = 1, 2  # exit statuses, distinct for pipelines


def compare(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The model in use.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The model that is to replace it.")],
    test: Annotated[
        Path,
        typer.Argument(metavar="TEST", help="A folder of class folders, or a CSV file (path, label, group)."),
    ],
    rules: Annotated[
        Path | None,
        typer.Option("--rules", help="The rules (gate.toml); without them nothing is refused."),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("gate.html"),
    flips: Annotated[
        Path | None, typer.Option("--csv", help="Write the images for which only one version is correct.")
    ] = None,
    head: OfHead = Head.softmax,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON, with all figures.")] = False,
    pictures: Annotated[
        bool,
        typer.Option(
            "--pictures/--no-pictures", help="Show the images of flips; they are images of patients."
        ),
    ] = True,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="How TEST is read, e.g. data.class_from=leaf."),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run code of other packages that the models name.")
    ] = False,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Images of one forward pass.")] = 64,
) -> None:
    """Compare two models on test images. Exit status: 0 passed, 1 refused by the rules, 2 an error."""
    with _error_status():
        from endocil.release.compare import compare as compare_versions
        from endocil.release.gate import judge, read_rules
        from endocil.release.record import record
        from endocil.release.versions import evaluate

        _check_outputs([output, *([flips] if flips else [])], [old, new, test, *([rules] if rules else [])])
        limits = read_rules(rules) if rules else None
        evaluation = evaluate(
            old,
            new,
            test,
            head="softmax" if head is Head.softmax else "nearest_mean",
            changes=changes or (),
            trust=trust,
            batch=batch,
            progress=lambda name: _progress(name, as_json),
        )
        comparison = compare_versions(evaluation.versions)
        verdict = None
        if limits is not None:
            verdict = judge(limits, comparison, len(evaluation.unreadable), len(evaluation.inside))
        result = record(evaluation, comparison, verdict)
        _write(evaluation, result, output, flips, pictures)
        _print(result, output, as_json)
    if verdict is not None and not verdict.passed:
        raise typer.Exit(REFUSED)


@contextmanager
def _error_status() -> Iterator[None]:
    """Any error ends with status 2 (130 for Ctrl-C), never with that of a refusal."""
    try:
        yield
    except EndocilError as error:
        fail(str(error), ERROR)
    except OSError as error:
        fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", ERROR)
    except KeyboardInterrupt:
        fail("stopped before there was a verdict", 130)
    except Exception:
        traceback.print_exc()
        raise SystemExit(ERROR) from None


def _check_outputs(outputs: list[Path], inputs: list[Path]) -> None:
    """No input is overwritten, and no file is written twice."""
    if len({path.absolute() for path in outputs}) < len(outputs):
        raise SettingsError(
            f"{outputs[0]} is both the page (-o) and the list of flips (--csv); give two names"
        )
    for path in outputs:
        if path.is_dir():
            raise SettingsError(f"{path} is a folder; expected the name of a file")
        if path.exists() and any(other.exists() and os.path.samefile(path, other) for other in inputs):
            raise SettingsError(f"{path} is read by this command; choose another file")


def _progress(name: str, as_json: bool) -> "Progress":
    """On standard error where standard output is JSON."""
    from rich.console import Console

    from endocil.io.terminal import plain_progress

    return plain_progress(Console(stderr=as_json), name)


def _write(
    evaluation: "Evaluation", result: dict[str, Any], output: Path, flips: Path | None, pictures: bool
) -> None:
    from endocil.audit.page import pictures_of
    from endocil.io.files import write_atomically, write_csv
    from endocil.release.page import gate_page
    from endocil.release.record import Flip

    write_atomically(output, gate_page(result, pictures_of(evaluation.table) if pictures else None))
    if flips is not None:
        columns = list(Flip.__dataclass_fields__)
        write_csv(flips, columns, ([flip[column] for column in columns] for flip in result["flips"]))


def _print(result: dict[str, Any], output: Path, as_json: bool) -> None:
    import json

    if as_json:
        print(json.dumps(result, indent=2, allow_nan=False))
        return
    test, accuracy = result["test"], result["overall"]["accuracy"]
    say(f"{test['compared']:,} of {test['images']:,} test images compared")
    change, (low, high) = accuracy["change"]["value"], accuracy["change"]["interval"]
    say(
        f"accuracy {accuracy['old']['value']:.1f} -> {accuracy['new']['value']:.1f} %, change {change:+.1f} "
        f"({low:.1f} to {high:.1f}) on images of classes that the old version knows"
    )
    for check in result["checks"]:
        if not check["passed"]:
            about = check["about"] or "all images"
            say(f"fails: [{check['section']}] {check['key']}, {about}: {check['explanation']}")
    for key in ("unknown_classes", "unreadable", "inside_a_model"):
        if result[key]:
            say(f"left out, {key}: {len(result[key]):,}, first {_printable(result[key][0]['image'])}")
    say(result["line"])
    say(f"page: {output}")


def _printable(name: str) -> str:
    """Bytes of file names that are not UTF-8 become question marks."""
    return name.encode("utf-8", "replace").decode("utf-8")
