"""Access: a token where one is set, only this server's own names and pages."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serve.conftest import Client, form

import endocil.serve
from endocil.cli.models import serve
from endocil.errors import EndocilError
from endocil.serve.guard import is_local, read_token, require_token

TOKEN = "a-token-that-is-long-enough"
PATHS = ("/api/v1/models", "/api/v1/models/model-1", "/api/v1/metrics", "/api/v1/runs", "/api/v1/openapi.json")
Serving = Callable[..., Client]


@pytest.mark.parametrize(
    "given", ["", "Bearer wrong", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer ä", "Bearer "]
)
def test_without_the_token_nothing_is_revealed(serving: Serving, pictures: list[bytes], given: str) -> None:
    client = serving(token=TOKEN)
    headers = {b"Authorization": given.encode()} if given else {}
    responses = [client.get(path, headers=headers) for path in PATHS]
    responses.append(client.post("/api/v1/predict", files=form(pictures[0]), headers=headers))
    responses.append(client.put("/api/v1/models/model-1", json={"file": "v2.endocil"}, headers=headers))
    responses.append(client.post("/api/v1/session", headers=headers))
    for response in responses:
        assert (response.status_code, response.json()["error"]["code"]) == (401, "no-token")
        assert response.headers["www-authenticate"] == "Bearer"
        assert "set-cookie" not in response.headers
        assert TOKEN not in response.text
    assert client.get("/api/v1/health", headers=headers).status_code == 200
    assert client.get("/").status_code == 200  # the page asks for it


def test_with_the_token_or_a_session_everything_is(serving: Serving, pictures: list[bytes]) -> None:
    client = serving(token=TOKEN)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert all(client.get(path, headers=bearer).status_code == 200 for path in PATHS)
    cookie = client.post("/api/v1/session", headers=bearer).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert all(client.get(path).status_code == 200 for path in PATHS)  # by the cookie
    assert client.post("/api/v1/predict", files=form(pictures[0])).status_code == 200
    client.cookies.clear()
    assert client.get("/api/v1/models", headers={"Cookie": "endocil_session=forged"}).status_code == 401
    assert client.get("/api/v1/models", headers={"Cookie": "endocil_session="}).status_code == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "", "127.0.0.1.evil.example"]
)
def test_a_foreign_name_is_refused(client: Client, host: str) -> None:
    """DNS rebinding: an attacker's name that has come to mean this machine."""
    for path in ("/", "/api/v1/models", "/assets/app.js"):
        response = client.get(path, headers={"Host": host})
        assert (response.status_code, response.json()["error"]["code"]) == (403, "foreign-host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "192.168.1.7:8000"])
def test_the_servers_own_names_and_numbers_are_not(client: Client, host: str) -> None:
    assert client.get("/api/v1/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:9999"},
        {"Origin": "http://localhost.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
def test_pages_of_other_sites_are_refused(client: Client, pictures: list[bytes], headers: dict[str, str]) -> None:
    responses = [
        client.post("/api/v1/predict", files=form(pictures[0]), headers=headers),
        client.put("/api/v1/models/model-1", json={"file": "v2.endocil"}, headers=headers),
        client.get("/api/v1/models", headers=headers),
    ]
    for response in responses:
        assert (response.status_code, response.json()["error"]["code"]) == (403, "foreign-origin")
        assert "access-control-allow-origin" not in response.headers


def test_the_own_page_and_a_link_to_it_are_not(client: Client) -> None:
    own = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    assert client.get("/api/v1/models", headers=own).status_code == 200
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/", headers=link).status_code == 200


def test_every_response_has_a_strict_policy(client: Client) -> None:
    for path in ("/", "/docs", "/assets/app.js", "/assets/style.css", "/api/v1/models", "/nothing"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers


def test_the_pages_hold_no_script_or_style_of_their_own_and_ask_nothing_from_outside(client: Client) -> None:
    import re

    for path in ("/", "/docs"):
        page = client.get(path).text
        assert "http://" not in page
        assert "https://" not in page
        assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", page)
        for asset in re.findall(r'(?:src|href)="(/assets/[^"]+)"', page):
            assert client.get(asset).status_code == 200, asset
    assets = Path(endocil.serve.__file__).parent / "assets"
    script = "".join(client.get(f"/assets/{asset.name}").text for asset in sorted(assets.glob("*.js")))
    for asset in re.findall(r'from "([^"]+)"', script):
        assert client.get(asset).headers["content-type"].startswith("text/javascript"), asset
    assert "innerHTML" not in script


def test_tokens_come_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENDOCIL_TOKEN", raising=False)
    assert read_token(None) is None
    monkeypatch.setenv("ENDOCIL_TOKEN", TOKEN)
    assert read_token(None) == TOKEN
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}2\n")
    assert read_token(file) == f"{TOKEN}2"
    for bad in ("short", "with spaces in its middle", "not-ascii-äöüäöüäöü", ""):
        file.write_text(bad)
        with pytest.raises(EndocilError, match="at least 16 printable ASCII characters"):
            read_token(file)
    with pytest.raises(EndocilError, match="cannot read the token"):
        read_token(tmp_path / "none")


def test_only_this_machine_is_local() -> None:
    assert all(is_local(host) for host in ("localhost", "127.0.0.1", "127.8.8.8", "::1"))
    assert not any(is_local(host) for host in ("0.0.0.0", "::", "192.168.1.7", "example.org", ""))
    require_token("127.0.0.1", None)
    require_token("0.0.0.0", TOKEN)
    with pytest.raises(EndocilError, match=r"--host 0\.0\.0\.0 can be reached from other machines"):
        require_token("0.0.0.0", None)


def test_the_command_refuses_an_open_door(versions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENDOCIL_TOKEN", raising=False)
    with pytest.raises(EndocilError, match="which needs a token: give --token-file or set ENDOCIL_TOKEN"):
        serve([versions / "v1.endocil"], host="0.0.0.0")


def test_a_missing_package_is_named_with_the_extra(versions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(EndocilError, match=r"uvicorn; install it by: pip install 'endocil\[serve\]'"):
        serve([versions / "v1.endocil"])


def test_folders_that_are_not_there_are_named(versions: Path, tmp_path: Path) -> None:
    for name, option in (("folder", "--models"), ("runs", "--runs")):
        missing: dict[str, Any] = {name: tmp_path / "none"}
        with pytest.raises(EndocilError, match=f"{option}: there is no folder"):
            serve([versions / "v1.endocil"], **missing)
