"""endocil compare: two versions of a model on the same images, and whether the new one may take the old one's place."""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from endocil.cli.common import fail, say
from endocil.cli.tables import Head, OfHead
from endocil.errors import EndocilError

if TYPE_CHECKING:
    from endocil.release.versions import Examined, Progress

REFUSED, ERROR = 1, 2  # exit statuses; a pipeline must be able to tell them apart


def compare(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The bundle in use.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The bundle that is to take its place.")],
    test: Annotated[
        Path,
        typer.Argument(metavar="TEST", help="A folder of class folders, or a CSV file (path, label, group)."),
    ],
    rules: Annotated[
        Path | None,
        typer.Option("--rules", help="What must hold (gate.toml); without it nothing is refused."),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("gate.html"),
    flips: Annotated[
        Path | None, typer.Option("--csv", help="Write every image that only one of the two gets right.")
    ] = None,
    head: OfHead = Head.softmax,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON, and nothing else.")
    ] = False,
    pictures: Annotated[
        bool, typer.Option("--pictures/--no-pictures", help="Show the flips; they are images of patients.")
    ] = True,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="How TEST is read, e.g. data.class_from=leaf."),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Let the bundles run code of other packages that they name.")
    ] = False,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Images at a time.")] = 64,
) -> None:
    """Compare two bundles on test images. Exit status: 0 passed, 1 refused by the rules, 2 something went wrong."""
    with _errors_are_no_refusals():
        from endocil.release.compare import compare as compared
        from endocil.release.gate import judge, read_rules
        from endocil.release.record import record
        from endocil.release.versions import examine

        _refuse_written_inputs(
            [output, *([flips] if flips else [])], [old, new, test, *([rules] if rules else [])]
        )
        wanted = read_rules(rules) if rules else None
        found = examine(
            old,
            new,
            test,
            head="softmax" if head is Head.softmax else "nearest_mean",
            changes=changes or (),
            trust=trust,
            batch=batch,
            progress=lambda what: _progress(what, as_json),
        )
        comparison = compared(found.versions)
        verdict = judge(wanted, comparison, len(found.unreadable), len(found.inside)) if wanted else None
        told = record(found, comparison, verdict)
        _write(found, told, output, flips, pictures)
        _tell(told, output, as_json)
    if verdict is not None and not verdict.passed:
        raise typer.Exit(REFUSED)


@contextmanager
def _errors_are_no_refusals() -> Iterator[None]:
    """Whatever goes wrong ends with 2 (130 for Ctrl-C), never with the status of a refusal."""
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


def _refuse_written_inputs(outputs: list[Path], inputs: list[Path]) -> None:
    """What is read is never written over, and no file is written twice."""
    if len({path.absolute() for path in outputs}) < len(outputs):
        raise EndocilError(
            f"{outputs[0]} is both the page (-o) and the list of flips (--csv); give two names"
        )
    for path in outputs:
        if path.is_dir():
            raise EndocilError(f"{path} is a folder; expected the name of a file")
        if path.exists() and any(other.exists() and os.path.samefile(path, other) for other in inputs):
            raise EndocilError(f"{path} is read by this command; choose another file")


def _progress(what: str, as_json: bool) -> "Progress":
    """On standard error where standard output is for a program."""
    from rich.console import Console

    from endocil.io.terminal import plain_progress

    return plain_progress(Console(stderr=as_json), what)


def _write(found: "Examined", told: dict[str, Any], output: Path, flips: Path | None, pictures: bool) -> None:
    from endocil.audit.page import pictures_of
    from endocil.io.files import write_atomically, write_csv
    from endocil.release.page import gate_page
    from endocil.release.record import Flip

    write_atomically(output, gate_page(told, pictures_of(found.table) if pictures else None))
    if flips is not None:
        columns = list(Flip.__dataclass_fields__)
        write_csv(flips, columns, ([flip[column] for column in columns] for flip in told["flips"]))


def _tell(told: dict[str, Any], output: Path, as_json: bool) -> None:
    import json

    if as_json:
        print(json.dumps(told, indent=2, allow_nan=False))
        return
    test, accuracy = told["test"], told["overall"]["accuracy"]
    say(f"{test['compared']:,} of {test['images']:,} test images compared")
    change, (low, high) = accuracy["change"]["value"], accuracy["change"]["interval"]
    say(
        f"accuracy {accuracy['old']['value']:.1f} -> {accuracy['new']['value']:.1f} %, change {change:+.1f} "
        f"({low:.1f} to {high:.1f}) on images of classes that the old version knows"
    )
    for check in told["checks"]:
        if not check["passed"]:
            say(
                f"fails: [{check['section']}] {check['key']}, {check['about'] or 'all images'}: {check['said']}"
            )
    for key in ("unknown_classes", "unreadable", "inside_a_bundle"):
        if told[key]:
            say(f"left out, {key}: {len(told[key]):,}, first {_printable(told[key][0]['image'])}")
    say(told["line"])
    say(f"page: {output}")


def _printable(name: str) -> str:
    """Bytes of file names that are no UTF-8 become question marks."""
    return name.encode("utf-8", "replace").decode("utf-8")
