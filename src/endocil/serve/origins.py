"""By which name a server was called, and from whose page."""

import ipaddress

from starlette.datastructures import Headers


def known_host(host: str, names: frozenset[str]) -> bool:
    """A number of the network can be nobody else's name; a name must be one of ours."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    if name.lower() in names:
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def foreign(headers: Headers, host: str, *, page: bool) -> bool:
    """Asked for by another site's page, which a browser says in one of two ways; a plain link to a page is fine."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        return True
    link = page and headers.get("sec-fetch-mode") == "navigate"
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not link
