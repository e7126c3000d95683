"""Signing in: sessions expire, cookies keep to https where it is told, and wrong tokens are answered slowly."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serve.conftest import Client, quickly
from serve.test_admission import TOKEN
from serve.test_engine import run
from starlette.datastructures import Headers

from endocil.errors import EndocilError
from endocil.serve import sessions
from endocil.serve.app import create_app
from endocil.serve.guard import Limits
from endocil.serve.schemas import ApiError
from endocil.serve.sessions import Proxies, Sessions, WrongTokens

BEARER = {"Authorization": f"Bearer {TOKEN}"}
Serving = Callable[..., Client]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_session_ends_and_cannot_be_forged_or_lengthened() -> None:
    clock = Clock()
    ours, other = Sessions(60.0, clock), Sessions(60.0, clock)
    cookie = ours.new()
    assert ours.is_valid(cookie)
    assert ours.new() != cookie
    end, random, signature = cookie.split(".")
    forged = [f"{int(end) + 1}.{random}.{signature}", f"{end}.x.{signature}", f"{end}.{random}.", "", ".", "ä.ö.ü"]
    assert not any(ours.is_valid(one) for one in [*forged, other.new(), f"{cookie}0"])
    clock.now += 61.1
    assert not ours.is_valid(cookie)
    with pytest.raises(EndocilError, match="--session-hours is 0; expected a number above 0"):
        Sessions(0.0)


def test_an_expired_session_is_refused_by_the_server(versions: Path) -> None:
    clock = Clock()
    service = quickly([versions / "v1.endocil"], None, None, Limits())
    app = create_app(service, token=TOKEN, sessions=Sessions(60.0, clock))
    with Client(app, base_url="http://localhost") as client:
        cookie = client.post("/api/v1/session", headers=BEARER).headers["set-cookie"]
        assert "Max-Age=60" in cookie
        sent = {"Cookie": cookie.partition(";")[0]}
        client.cookies.clear()
        assert client.get("/api/v1/models", headers=sent).status_code == 200
        clock.now += 100
        assert client.get("/api/v1/models", headers=sent).status_code == 401


@pytest.mark.parametrize(
    ("proxies", "told", "secure"),
    [
        (Proxies(), {}, False),
        (Proxies(), {"X-Forwarded-Proto": "https"}, False),  # anyone can write it
        (Proxies(https=True), {}, True),
        (Proxies.of(["10.0.0.0/8"]), {"X-Forwarded-Proto": "https"}, True),
        (Proxies.of(["10.0.0.0/8"]), {"X-Forwarded-Proto": "https, http"}, False),  # the proxy's word is the last
        (Proxies.of(["10.0.0.7"]), {"X-Forwarded-Proto": "https"}, False),
        (Proxies.of(["10.0.0.0/8"]), {}, False),
    ],
)
def test_cookies_are_for_https_alone_where_it_is_told(
    versions: Path, proxies: Proxies, told: dict[str, str], secure: bool
) -> None:
    service = quickly([versions / "v1.endocil"], None, None, Limits())
    app = create_app(service, token=TOKEN, proxies=proxies)
    with Client(app, base_url="http://localhost", client=("10.1.2.3", 5000)) as client:
        cookie = client.post("/api/v1/session", headers={**BEARER, **told}).headers["set-cookie"].lower()
    assert ("; secure" in cookie) is secure
    assert "; httponly" in cookie
    assert "; samesite=strict" in cookie


def test_the_client_is_the_one_that_trusted_proxies_name() -> None:
    def client(peer: str, *hops: str) -> str:
        scope: dict[str, Any] = {"client": (peer, 1)}
        return proxies.client(scope, Headers(raw=[(b"x-forwarded-for", hop.encode()) for hop in hops]))

    proxies = Proxies.of(["10.0.0.0/8", "::1"])
    assert client("192.0.2.1", "198.51.100.9") == "192.0.2.1"  # no proxy: its word does not count
    assert client("10.0.0.1", "203.0.113.5, 198.51.100.9") == "198.51.100.9"  # what stands before may be invented
    assert client("10.0.0.1", "198.51.100.9, 10.0.0.2") == "198.51.100.9"
    assert client("10.0.0.1") == "10.0.0.1"
    assert client("2001:db8::1") == client("2001:db8::2") == "2001:db8::/64"
    with pytest.raises(EndocilError, match="--proxy 'example': expected an IP address or a network"):
        Proxies.of(["example"])


def test_wrong_tokens_of_a_client_wait_ever_longer_and_are_forgotten() -> None:
    clock = Clock()
    wrong = WrongTokens(clock)
    assert [wrong.delay("a") for _ in range(sessions.FREE)] == [0.0] * sessions.FREE
    assert [wrong.delay("a") for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert wrong.delay("b") == 0.0
    clock.now += sessions.WINDOW + 1
    assert wrong.delay("a") == 0.0


def test_wrong_tokens_of_many_clients_are_bounded_together() -> None:
    wrong = WrongTokens(Clock())
    delays = [wrong.delay(f"client {number}") for number in range(5 * sessions.MOST_CLIENTS)]
    assert delays[: sessions.FREE_OF_ALL] == [0.0] * sessions.FREE_OF_ALL
    assert set(delays[sessions.FREE_OF_ALL :]) == {sessions.LONGEST_DELAY}
    assert len(wrong._by_client) == sessions.MOST_CLIENTS

    async def steps() -> None:
        held = [asyncio.create_task(wrong.hold("a")) for _ in range(sessions.MOST_WAITING)]
        await asyncio.sleep(0.05)
        with pytest.raises(ApiError, match="too many wrong tokens"):
            await wrong.hold("b")
        for one in held:
            one.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        assert wrong._waiting == 0

    run(steps())


def test_the_right_token_never_waits_for_wrong_ones(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "FIRST_DELAY", 0.3)
    client = serving(token=TOKEN)
    session = client.post("/api/v1/session", headers=BEARER).headers["set-cookie"].partition(";")[0]
    client.cookies.clear()
    for _ in range(sessions.FREE):
        assert client.get("/api/v1/models", headers={"Authorization": "Bearer wrong"}).status_code == 401
    begun = time.monotonic()
    assert client.post("/api/v1/session", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert time.monotonic() - begun > 0.29
    begun = time.monotonic()
    assert client.get("/api/v1/models", headers=BEARER).status_code == 200
    assert client.get("/api/v1/models", headers={"Cookie": session}).status_code == 200
    assert client.get("/api/v1/models").status_code == 401  # none is not a wrong one
    assert client.get("/api/v1/models", headers={"Cookie": "endocil_session=old"}).status_code == 401
    assert time.monotonic() - begun < 0.29
