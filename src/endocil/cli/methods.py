"""endocil methods, check-method and new-method: what there is, and for those who write a method of their own."""

from pathlib import Path
from typing import Annotated

import typer

from endocil.cli.console import console, say
from endocil.errors import EndocilError, SettingsError


def methods() -> None:
    """List the methods with their options and defaults."""
    from rich.table import Table

    from endocil.methods import METHODS, method_options, method_title

    table = Table("method", "what it does", "exemplars by", r"options (keys of \[method])")
    for name, method in sorted(METHODS.items()):
        options = "\n".join(f"{key} = {value}" for key, value in sorted(method_options(name).items()))
        summary = (method.__doc__ or "").split("\n\n")[0]
        table.add_row(
            f"{name}\n({method_title(name)})",
            summary,
            method.default_selector if method.replay else "keeps none",
            options,
        )
    console().print(table)


def check_method(
    name: Annotated[str, typer.Argument(metavar="METHOD", help="module:Class, or the name of a method.")],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the method, e.g. method.distil=0.5."),
    ] = None,
) -> None:
    """Try a method on a tiny scenario of three tasks and report what is wrong with it."""
    from endocil.learning.contract import contract_problems
    from endocil.settings.settings import load_settings

    settings = load_settings({"method": {"name": name}}, changes or ()).trusted()
    problems = contract_problems(name, settings.method.options, log=lambda line: say(f"trying {line}"))
    if problems:
        raise EndocilError(f"{name}: {'; '.join(problems)}")
    say(f"{name} keeps the contract of a method")


def new_method(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of the file; the class gets it in CamelCase (my_replay: MyReplay)."),
    ],
) -> None:
    """Write a method to start from into the file NAME.py of this folder."""
    from endocil.io.files import write_atomically
    from endocil.methods import template

    if not (name.isidentifier() and name.islower()):
        raise SettingsError(f"'{name}' cannot be the name of a module; expected small letters, such as my_replay")
    path, title = Path(f"{name}.py"), "".join(part.capitalize() for part in name.split("_"))
    if path.exists():
        raise SettingsError(f"{path} exists already; choose another name")
    text = Path(template.__file__).read_text(encoding="utf-8")
    text = text.replace("class Template(", f"class {title}(").replace("MODULE:CLASS", f"{name}:{title}")
    write_atomically(path, text.encode())
    say(f"{path}: try it by 'endocil check-method {name}:{title}', use it by --set method.name={name}:{title}")
