"""endocil compare: two versions of a model on the same images, and whether the new one may replace the old one."""

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from endocil.cli.console import Head, fail, refuse_overwriting, say
from endocil.errors import EndocilError, SettingsError
from endocil.io.files import refuse_existing, write_atomically, write_csv
from endocil.io.process import exit_status
from endocil.io.terminal import plain_progress

REFUSED, ERROR = 1, 2  # exit statuses, distinct for pipelines


def compare(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The model in use.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The model that is to replace it.")],
    test: Annotated[
        Path, typer.Argument(metavar="TEST", help="A folder of class folders, or a CSV file (path, label, group).")
    ],
    rules: Annotated[Path | None, typer.Option(help="The rules (gate.toml); without them nothing is refused.")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("gate.html"),
    flips: Annotated[
        Path | None, typer.Option("--csv", help="Write the images for which only one version is correct.")
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the new model with the verdict inside, passed or refused, into this new model file.",
        ),
    ] = None,
    head: Head = "softmax",
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON, with all figures.")] = False,
    pictures: Annotated[bool, typer.Option(help="Show the images of flips; they are images of patients.")] = True,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="How TEST is read, e.g. data.class_from=leaf."),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Allow the model files to import code of other packages that they name.")
    ] = False,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 64,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the page and the list if they exist.")] = False,
) -> None:
    """Compare two models on test images. Exit status: 0 passed, 1 refused by the rules, 2 an error."""
    with _error_status():
        from endocil.audit.page import pictures_of
        from endocil.release.compare import compare as compare_versions
        from endocil.release.gate import judge, read_rules, verdict_for_model, write_with_verdict
        from endocil.release.page import gate_page
        from endocil.release.record import FLIP_COLUMNS, record
        from endocil.release.versions import evaluate

        if flips is not None and flips.absolute() == output.absolute():
            raise SettingsError(f"{output} is both the page (-o) and the list of flips (--csv); give two names")
        if keep is not None:
            if rules is None:
                raise SettingsError("--keep writes a verdict into a model, which needs rules; give --rules")
            if keep.exists():
                raise SettingsError(f"{keep} exists already; choose another file with --keep")
        for written in filter(None, (output, flips)):
            refuse_overwriting(written, filter(None, (old, new, test, rules)))
            refuse_existing(written, force=force)
        screen = Console(stderr=as_json)  # where standard output is JSON, progress goes to standard error
        limits = read_rules(rules) if rules else None
        evaluation = evaluate(
            old,
            new,
            test,
            head=head,
            changes=changes or (),
            trust=trust,
            batch=batch,
            progress=lambda name: plain_progress(screen, name),
        )
        comparison = compare_versions(evaluation.versions)
        verdict = None
        if limits is not None:
            verdict = judge(limits, comparison, len(evaluation.unreadable), len(evaluation.inside))
        result = record(evaluation, comparison, verdict)
        write_atomically(output, gate_page(result, pictures_of(evaluation.table) if pictures else None))
        if flips is not None:
            write_csv(flips, FLIP_COLUMNS, (list(flip.values()) for flip in result["flips"]))
        kept = ""
        if verdict is not None and rules is not None and keep is not None:
            kept = write_with_verdict(new, verdict_for_model(verdict, evaluation, rules), keep)
        if as_json:
            print(json.dumps(result, indent=2, allow_nan=False))
        else:
            _print(result)
            say(f"page: {output}")
            if kept:
                say(f"{keep}: the new model with this verdict inside; sha256 {kept}")
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
        fail("stopped before there was a verdict", exit_status())
    except Exception:
        traceback.print_exc()
        raise SystemExit(ERROR) from None


def _print(result: dict[str, Any]) -> None:
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
            image = result[key][0]["image"].encode("utf-8", "replace").decode("utf-8")  # names that are not UTF-8
            say(f"left out, {key}: {len(result[key]):,}, first {image}")
    say(result["line"])
