"""Write docs/settings.md from the settings models and docs/commands.md from the command line.

    python docs/make_reference.py          # writes both pages; `make docs` does it too
    python docs/make_reference.py --check  # exit status 1 if a page is out of date

Keys, options and defaults come from the code, the meaning of each settings key from docs/meanings.toml. A key
without a meaning, and a meaning without a key, is an error.
"""

import sys
import tomllib
from collections.abc import Iterator, Mapping
from inspect import Parameter
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel

from endocil import Settings
from endocil.cli.main import _application
from endocil.datasets import DATASETS, RESERVED
from endocil.learning.memory import SELECTORS
from endocil.methods import METHODS, method_options
from endocil.networks import BACKBONES, RESERVED_OPTIONS
from endocil.registry import options_of

DOCS = Path(__file__).parent

HEAD = """<!-- Written by docs/make_reference.py; do not edit. -->

# {title}

{text}
"""


def settings_page() -> str:
    """Every key of the settings with its default and its meaning, section by section."""
    rows, meanings = list(_keys()), _meanings()
    if faults := sorted({key for key, *_ in rows} ^ meanings.keys()):
        raise SystemExit(f"docs/meanings.toml and the settings differ in: {', '.join(faults)}")
    text = (
        "A settings file is TOML. On the command line the same keys are set by `--set section.key=value`. An unknown\n"
        "key is refused, and the message lists the known ones. Some keys belong to one data set, backbone, selector\n"
        "or method; the column *only for* names it. `endocil methods` lists the options of the methods."
    )
    parts = [HEAD.format(title="Settings", text=text)]
    for section in dict.fromkeys(key.rpartition(".")[0] for key, *_ in rows):
        parts.append(f"## {f'[{section}]' if section else 'Top level'}\n")
        parts.append("| key | default | only for | meaning |\n|---|---|---|---|")
        chosen = [row for row in rows if row[0].rpartition(".")[0] == section]
        parts += [
            f"| `{key.rpartition('.')[2]}` | {default} | {only} | {meanings[key]} |" for key, default, only in chosen
        ]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _meanings() -> dict[str, str]:
    meanings: dict[str, str] = {}
    for key, value in tomllib.loads((DOCS / "meanings.toml").read_text("utf-8")).items():
        section = isinstance(value, dict)
        meanings |= {f"{key}.{inner}": text for inner, text in value.items()} if section else {key: value}
    return meanings


def _keys() -> Iterator[tuple[str, str, str]]:
    """(key, default, the things that take it) in the order of the page."""
    named: dict[str, Mapping[str, Mapping[str, Any]]] = {
        "data": {name: _without(options_of(load), RESERVED) for name, load in DATASETS.items()},
        "network": {name: _without(options_of(maker), RESERVED_OPTIONS) for name, maker in BACKBONES.items()},
        "memory": {name: options_of(select) for name, select in SELECTORS.items()},
        "method": {name: method_options(name) for name in METHODS},
    }
    for name, field in Settings.model_fields.items():
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            yield name, _value(field.default), ""
            continue
        for key, inner in field.annotation.model_fields.items():
            yield f"{name}.{key}", _value(inner.default), ""
        if name in named:
            yield from _options(name, named[name])


def _options(section: str, things: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    for key in dict.fromkeys(key for options in things.values() for key in options):
        takers = {name: options[key] for name, options in things.items() if key in options}
        values = {name: _value(default) for name, default in takers.items()}
        usual = max(values.values(), key=list(values.values()).count)
        others = [f"{value} ({name})" for name, value in values.items() if value != usual]
        only = "" if len(takers) == len(things) else ", ".join(f"`{name}`" for name in sorted(takers))
        yield f"{section}.{key}", ", ".join([usual, *others]), only


def _without(options: Mapping[str, Any], left_out: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in left_out}


def _value(default: Any) -> str:
    if default is Parameter.empty:
        return "required"
    if default is None:
        return "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple):
        return f"`[{', '.join(map(str, default))}]`"
    if isinstance(default, float):
        return f"`{default:.4g}`" if default != int(default) else f"`{default}`"
    return f'`"{default}"`' if isinstance(default, str) else f"`{default}`"


def commands_page() -> str:
    """Every command with its arguments and options."""
    program: Any = typer.main.get_command(_application())
    text = (
        "`endocil COMMAND --help` prints the same. An error that you can mend is one line on standard error and\n"
        "exit status 1. Ctrl-C ends a run with status 130 and says how to continue."
    )
    parts = [HEAD.format(title="Commands", text=text)]
    for name, command in program.commands.items():
        if hasattr(command, "commands"):
            for inner, member in command.commands.items():
                parts += _command(f"{name} {inner}", member)
        else:
            parts += _command(name, command)
    return "\n".join(parts).rstrip() + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [one for one in command.params if not one.opts[0].startswith("-")]
    options = [one for one in command.params if one.opts[0].startswith("-") and not one.hidden]
    words = [f"[{word}]" if not one.required else word for one in arguments for word in (_metavar(one),)]
    yield f"## endocil {name}\n"
    yield f"{' '.join((command.help or '').split())}\n"
    yield f"```\nendocil {' '.join([name, *words])}{' [OPTIONS]' if options else ''}\n```\n"
    if arguments or options:
        yield "| | default | |\n|---|---|---|"
    for one in arguments:
        yield f"| `{_metavar(one)}` | {'required' if one.required else ''} | {_cell(one.help)} |"
    for one in options:
        spelled = ", ".join(f"`{word}`" for word in (*one.opts, *one.secondary_opts))
        yield f"| {spelled} | {_default(one)} | {_cell(one.help)} |"
    yield ""


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _default(option: Any) -> str:
    if option.required:
        return "required"
    if option.default is None or option.default == () or option.default is False:
        return ""
    return "yes" if option.default is True else f"`{option.default}`" if option.default != "" else ""


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


PAGES = {"settings.md": settings_page, "commands.md": commands_page}


def main() -> None:
    for name, page in PAGES.items():
        path = DOCS / name
        if "--check" in sys.argv[1:]:
            if not path.exists() or path.read_text("utf-8") != page():
                raise SystemExit(f"docs/{name} is out of date; run: python docs/make_reference.py")
        else:
            path.write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
