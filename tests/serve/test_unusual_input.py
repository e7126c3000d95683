"""Unusual names, cookies and folders break nothing; the log stays valid whatever libraries print."""

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from present import present
from serve.conftest import Client, LogStream, form
from untrained import untrained, write_untrained

from endocil.model.file import write_model_file
from endocil.serve.monitoring import LibraryLogHandler, Log

PREDICT, MODEL = "/api/v1/predict", "/api/v1/models/model-1"
TOKEN = "a-token-that-is-long-enough"
Serving = Callable[..., Client]


def test_a_model_file_whose_name_is_not_text_is_left_out(serving: Serving, folder: Path) -> None:
    (folder / "v2.endocil").rename(folder / "\udcff.endocil")
    client = serving(folder / "v1.endocil", models=folder)
    assert client.get("/api/v1/models").json()["files"] == ["v1.endocil"]
    assert client.put(MODEL, json={"file": "v1.endocil"}).status_code == 200


def test_a_model_whose_name_is_no_text_answers_all_the_same(
    serving: Serving, tmp_path: Path, pictures: list[bytes]
) -> None:
    client = serving(write_untrained(tmp_path / "\udcff.endocil", name="b\udcffd"))
    (summary,) = client.get("/api/v1/models").json()["models"]
    assert (summary["name"], summary["file"]) == ("b\\udcffd", "\\udcff.endocil")
    assert client.get(MODEL).json()["model"] == summary
    assert client.post(PREDICT, files=form(pictures[0])).status_code == 200


def test_a_folder_of_models_that_has_gone_offers_none(serving: Serving, folder: Path, pictures: list[bytes]) -> None:
    client = serving(folder / "v1.endocil", models=folder)
    folder.rename(folder.with_name("elsewhere"))
    assert client.get("/api/v1/models").json()["files"] == []
    answer = client.put(MODEL, json={"file": "v2.endocil"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not-found")
    assert client.post(PREDICT, files=form(pictures[0])).status_code == 200
    folder.with_name("elsewhere").rename(folder)
    assert client.get("/api/v1/models").json()["files"] == ["v1.endocil", "v2.endocil"]


def test_the_folder_of_models_is_not_looked_into_by_the_thread_that_answers(
    serving: Serving, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serving(folder / "v1.endocil", models=folder)
    models, threads = client.service.models, list[bool]()
    right: Callable[[], dict[str, Path]] = models.files

    def watched() -> dict[str, Path]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            threads.append(True)
        else:
            threads.append(False)
        return right()

    monkeypatch.setattr(models, "files", watched)
    assert client.put(MODEL, json={"file": "v2.endocil"}).status_code == 200
    assert threads == [True]


@pytest.mark.parametrize("others", ['prefs={"a": 1}; ', "a=b=c; ;; x; ", "ä=ö; ", 'q="un; '])
def test_cookies_of_others_do_not_keep_anybody_out(serving: Serving, others: str) -> None:
    client = serving(token=TOKEN)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    own = client.post("/api/v1/session", headers=bearer).headers["set-cookie"].partition(";")[0]
    client.cookies.clear()
    for cookie in (f"{others}{own}", f"{own}; {others}"):
        assert client.get("/api/v1/models", headers={b"Cookie": cookie.encode()}).status_code == 200
    assert client.get("/api/v1/models", headers={b"Cookie": others.encode()}).status_code == 401


def test_a_proxys_own_way_to_sign_in_does_not_hide_the_cookie(serving: Serving) -> None:
    client = serving(token=TOKEN)
    client.post("/api/v1/session", headers={"Authorization": f"Bearer {TOKEN}"})
    assert client.get("/api/v1/models", headers={"Authorization": "Basic dTpw"}).status_code == 200
    assert client.get("/api/v1/models", headers={"Authorization": "Bearer wrong"}).status_code == 401
    client.cookies.clear()
    assert client.get("/api/v1/models", headers={"Authorization": "Basic dTpw"}).status_code == 401


def test_head_is_answered_as_get_without_the_body(client: Client, log_stream: LogStream) -> None:
    for path in ("/", "/docs", "/assets/app.js", "/api/v1/health", "/api/v1/models", "/nothing"):
        head, got = client.head(path), client.get(path)
        assert (head.status_code, head.content) == (got.status_code, b"")
        assert head.headers["content-length"] == got.headers["content-length"]
    assert json.loads(log_stream.lines[1])["method"] == "HEAD"
    wrong = client.get(PREDICT)
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "wrong-method")
    assert client.head(PREDICT).status_code == 405


def test_a_model_without_a_threshold_flags_nothing(serving: Serving, tmp_path: Path, pictures: list[bytes]) -> None:
    content = untrained()
    fitted = present(content.manifest.calibration).model_copy(update={"ood_threshold": None})
    manifest = content.manifest.model_copy(update={"calibration": fitted})
    write_model_file(tmp_path / "model.endocil", replace(content, manifest=manifest))
    client = serving(tmp_path / "model.endocil")
    (answer,) = client.post(PREDICT, files=form(pictures[0])).json()["images"][0]["predictions"]
    assert (answer["out_of_distribution"], answer["calibrated"]) == (None, True)
    assert client.get(MODEL).json()["calibration"]["ood_threshold"] is None


def test_messages_of_other_packages_are_not_logged(log_stream: LogStream) -> None:
    records = LibraryLogHandler(Log(log_stream))
    for name in ("asyncio", "py.warnings", "PIL.TiffImagePlugin", "uvicorn.error"):
        records.handle(logging.makeLogRecord({"name": name, "levelno": 30, "levelname": "WARNING", "msg": "Jane"}))
    lines = [json.loads(line) for line in log_stream.lines]
    assert [line["source"] for line in lines] == ["asyncio", "py.warnings", "PIL.TiffImagePlugin", "uvicorn.error"]
    assert [line.get("message") for line in lines] == [None, None, None, "Jane"]


def test_standard_error_is_as_before_when_serving_has_ended() -> None:
    code = (
        "import os, sys, warnings, logging\n"
        "from endocil.serve.monitoring import Log, exclusive_stderr\n"
        "log = Log()\n"
        "with exclusive_stderr(log):\n"
        "    os.write(2, b'Jane'); warnings.warn('Jane'); logging.getLogger('asyncio').error('Jane')\n"
        "    print('Jane', file=sys.stderr); log('inside')\n"
        "os.write(2, b'after\\n'); print('and after', file=sys.stderr); log('outside')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    *inside, after, and_after, outside = done.stderr.splitlines()
    assert [json.loads(line).get("source") for line in inside] == ["py.warnings", "asyncio", None]
    assert (after, and_after, json.loads(outside)["event"]) == ("after", "and after", "outside")
    assert "Jane" not in done.stderr
