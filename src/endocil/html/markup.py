"""Pages from Jinja2 templates. Every value is escaped by the template, so that a class called `<b>"x"` stays a name.

A subpackage with a page has `templates/page.html`, which extends `base.html` of this one, and may have
`assets/page.css` and `assets/page.js`. A page is one file: style and script stand inside it, named by their hashes in
its content security policy, and nothing else may run or be loaded."""

import base64
import hashlib
import io
import math
import re
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from PIL import Image

from endocil.io.terminal import without_tricks

_UNUSUAL = re.compile(r"[^\t\n\x20-\x7e\xa0-\u0619\u0620-\u1fff\u2070-\ud7ff]")  # the rest is looked at more closely
# A percentage as a length: the policy of a page allows no style on an element, so that each has a class.
SHADES = "".join(f".v{n}{{--v:{n}}}" for n in range(101))


def render_page(package: str, **context: Any) -> str:
    """The page of a subpackage."""
    style = asset("endocil.html", "style.css") + asset(package, "page.css") + SHADES
    page = environment(package).get_template("page.html")
    own = {"style": Markup(style), "script": Markup(asset(package, "page.js"))}
    text = page.render(**own, **{name: _shown(value) for name, value in context.items()})
    return text.encode("utf-8", "replace").decode("utf-8")


@cache
def environment(package: str) -> Environment:
    loaders = [PackageLoader(name, "templates") for name in (package, "endocil.html")]
    environment = Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters |= {"policy_hash": policy_hash, "number": number, "code": code, "subscripted": subscripted}
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment


def _shown(value: Any) -> Any:
    """What a template inserts, or hands to a script: what could hide or turn text is written out, as on a terminal."""
    if type(value) is str:
        return without_tricks(value) if _UNUSUAL.search(value) else value
    if type(value) is dict:
        return {_shown(key): _shown(inner) for key, inner in value.items()}
    return [_shown(inner) for inner in value] if type(value) is list else value


@cache
def asset(package: str, name: str) -> str:
    """A style sheet or script of a subpackage; empty where it has none."""
    file = resources.files(package).joinpath("assets", name)
    return file.read_text("utf-8") if file.is_file() else ""


def policy_hash(text: str) -> str:
    """For a page's content security policy: this script or style, and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def number(value: float | None, decimals: int = 1) -> str:
    """1,234.5; a dash where there is no number, and no minus before nothing."""
    if value is None or not math.isfinite(value):
        return "\N{EN DASH}"
    return f"{round(value, decimals) + 0.0:,.{decimals}f}"


def subscripted(text: str) -> Markup:
    """A text in which names of metrics, such as Acc_last, have their end as a small word below the line."""
    return Markup(re.sub(r"\b(Acc|F1)_(last|avg)\b", r"\1<sub>\2</sub>", str(escape(_shown(text)))))


def jpeg_uri(pixels: Any, side: int, quality: int = 85) -> str:
    """(H, W, 3) uint8 as a picture of at most `side` pixels that stands inside the page."""
    picture = Image.fromarray(pixels)
    picture.thumbnail((side, side))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def code(text: str) -> Markup:
    """`af` as a name of the files or an option."""
    return Markup(re.sub(r"`([\w-]+)`", r"<code>\1</code>", str(escape(_shown(text)))))
