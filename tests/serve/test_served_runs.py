"""Runs that may be browsed: each by an id, none from outside the folder, and no script but this version's own."""

from collections.abc import Callable
from pathlib import Path

import pytest
from made_runs import metrics_of, settings_of, write_run
from serve.conftest import Client

from endocil.reports.page import write_page
from endocil.runs.records import read_run
from endocil.serve import served_runs as serving_runs

METRICS = '{"classes": ["a", "b"], "task_sizes": [1, 1], "softmax": {"acc_last": 71.5}}'
Serving = Callable[..., Client]


def make_run(folder: Path, report: str = "") -> None:
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(METRICS)
    (folder / "settings.toml").write_text('[method]\nname = "icarl"\n')
    if report:
        (folder / "report.html").write_text(report)


def test_runs_are_found_by_their_ids_and_links_lead_nowhere(serving: Serving, tmp_path: Path) -> None:
    runs, outside = tmp_path / "runs", tmp_path / "outside"
    make_run(runs / "one", "hello")
    make_run(runs / "deep" / "two")
    make_run(runs / "four")
    make_run(outside / "three", "secret")
    (runs / "linked").symlink_to(outside / "three")
    (runs / "deep" / "two" / "report.html").symlink_to(outside / "three" / "report.html")
    (runs / "four" / "settings.toml").unlink()
    (runs / "four" / "settings.toml").symlink_to(outside / "three" / "settings.toml")
    (runs / "itself").mkdir()
    (runs / "itself" / "metrics.json").symlink_to(runs / "itself" / "metrics.json")
    (runs / "broken").mkdir()
    (runs / "broken" / "metrics.json").write_text("{")
    client = serving(runs=runs)
    body = client.get("/api/v1/runs").json()
    listed = {one["name"]: one for one in body["runs"]}
    assert (set(listed), body["left_out"]) == ({"one", "deep/two"}, 0)
    assert (listed["one"]["accuracy"], listed["one"]["method"], listed["one"]["tasks"]) == (71.5, "iCaRL", 2)
    assert listed["deep/two"]["report"] is None
    assert client.get(listed["one"]["report"]).text == "hello"
    assert client.get(f"/api/v1/runs/{listed['deep/two']['id']}/report").status_code == 404
    assert client.get("/api/v1/runs/0123456789abcdef/report").status_code == 404


def test_a_folder_whose_name_is_no_text_is_told_escaped(serving: Serving, tmp_path: Path) -> None:
    make_run(tmp_path / "b\udcffd", "hello")
    client = serving(runs=tmp_path)
    (one,) = client.get("/api/v1/runs").json()["runs"]
    assert one["name"] == "b\\udcffd"
    assert client.get(one["report"]).text == "hello"


def test_runs_that_are_too_many_to_list_are_counted(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_runs, "MAX_LISTED", 3)
    for number in range(5):
        make_run(tmp_path / f"run-{number}")
    body = serving(runs=tmp_path).get("/api/v1/runs").json()
    assert ([one["name"] for one in body["runs"]], body["left_out"]) == (["run-0", "run-1", "run-2"], 2)


def test_a_folder_that_has_gone_has_no_runs(serving: Serving, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one")
    client = serving(runs=tmp_path / "runs")
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    assert client.get("/api/v1/runs").json()["runs"] == []


def policy_of(client: Client) -> str:
    (one,) = client.get("/api/v1/runs").json()["runs"]
    policy: str = client.get(one["report"]).headers["content-security-policy"]
    return policy


def test_a_report_of_this_version_may_run_its_script(serving: Serving, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", settings_of("icarl", 0), metrics_of("icarl"))
    write_page([read_run(run)], run / "report.html", title="One")
    page = (run / "report.html").read_text()
    policy = policy_of(serving(runs=tmp_path))
    assert policy.startswith("sandbox allow-scripts; default-src 'none'; script-src 'sha256-")
    assert f"script-src '{serving_runs.script_hash()}'" in page  # as the page itself asks for
    assert f"script-src '{serving_runs.script_hash()}';" in policy
    assert "unsafe" not in policy


def test_a_report_with_another_script_is_shown_without_it(serving: Serving, tmp_path: Path) -> None:
    """Whoever writes a page can name any hash in it."""
    style, script = "A" * 43, "B" * 43
    page = f"<meta content=\"style-src 'sha256-{style}='; script-src 'sha256-{script}='\"><script>bad()</script>"
    make_run(tmp_path / "run", page)
    policy = policy_of(serving(runs=tmp_path))
    assert policy.startswith("sandbox; default-src 'none'; script-src 'none'; style-src 'sha256-AAA")
    assert script not in policy
