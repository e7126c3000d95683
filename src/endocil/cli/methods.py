"""endocil check-method and new-method: for those who write a method of their own."""

from pathlib import Path
from typing import Annotated

import typer

from endocil.cli.console import Overrides, say
from endocil.errors import EndocilError, SettingsError


def check_method(
    name: Annotated[str, typer.Argument(metavar="METHOD", help="module:Class, or the name of a method.")],
    changes: Overrides = None,
) -> None:
    """Try a method on a tiny life and say in words what is wrong with it."""
    from endocil.learning.contract import contract_problems
    from endocil.settings.settings import load_settings

    settings = load_settings({"method": {"name": name}}, changes or ()).trusted()
    problems = contract_problems(name, settings.method.options, log=lambda line: say(f"trying {line}"))
    if problems:
        raise EndocilError(f"{name}: {'; '.join(problems)}")
    say(f"{name} keeps the contract of a method")


def new_method(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the file and, in capitals, of the class: my_replay.")],
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
