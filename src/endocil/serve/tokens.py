"""Who may ask: everybody on this machine, or whoever has the token."""

import hmac
import ipaddress
import os
from pathlib import Path

from endocil.errors import EndocilError
from endocil.opening import read_whole

VARIABLE = "ENDOCIL_TOKEN"
SHORTEST = 16  # characters


def token_from(file: Path | None) -> str | None:
    """From a file or the environment: arguments of a program can be read by all users of a machine."""
    if file is None:
        token, source = os.environ.get(VARIABLE), VARIABLE
    else:
        try:
            token, source = read_whole(file).decode("utf-8", "replace").strip(), str(file)
        except OSError as error:
            raise EndocilError(f"cannot read the token in {file}: {error.strerror or error}") from error
    if token is None:
        return None
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise EndocilError(
            f"the token in {source} must be at least {SHORTEST} printable ASCII characters without spaces; make one "
            f'with: python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    return token


def is_local(host: str) -> bool:
    """An address that only this machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_open_doors(host: str, token: str | None) -> None:
    if not is_local(host) and token is None:
        raise EndocilError(
            f"--host {host} can be reached from other machines, which needs a token: give --token-file or set "
            f"{VARIABLE}"
        )


def same(one: str, other: str) -> bool:
    """In a time that tells nothing of where they differ."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))
