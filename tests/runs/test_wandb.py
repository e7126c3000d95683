"""Weights & Biases offline: the numbers of the events, and nothing of the machine."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pictures import TINY

import endocil
from endocil import EndocilError
from endocil.runs.trackers import refuse_missing_package


def history(file: Path) -> list[dict[str, Any]]:
    """What was logged, from the file that `wandb sync` sends."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]
    from wandb.sdk.internal.datastore import DataStore

    store = DataStore()
    store.open_for_scan(str(file))  # type: ignore[no-untyped-call]
    rows = []
    while (data := store.scan_data()) is not None:  # type: ignore[no-untyped-call]
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows


def test_an_offline_run_holds_the_losses_and_accuracies_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    settings = {**TINY, "method": {"name": "finetune"}, "run": {**TINY.get("run", {}), "wandb": True}}
    run = tmp_path / "run"
    metrics = endocil.run(settings, run).metrics
    [file] = run.glob("wandb/offline-run-*/*.wandb")
    rows = history(file)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    losses = [event["losses"]["classification"] for event in events if event["event"] == "epoch"]
    logged = [(row["epoch"], row["loss/classification"]) for row in rows if "loss/classification" in row]
    assert [epoch for epoch, _ in logged] == list(range(1, len(losses) + 1))
    assert [value for _, value in logged] == pytest.approx(losses)
    accuracies = [row["accuracy/softmax"] for row in rows if "accuracy/softmax" in row]
    assert accuracies == pytest.approx(metrics["softmax"]["acc"])
    assert str(tmp_path).encode() not in file.read_bytes()  # no folders of this machine
    assert not list(run.glob("wandb/**/wandb-metadata.json"))


def test_without_the_package_a_run_is_refused_before_it_reads_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    assert importlib.util.find_spec("wandb") is not None
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(EndocilError, match=r"pip install 'endocil\[wandb\]'"):
        refuse_missing_package("wandb")
    with pytest.raises(EndocilError, match=r"pip install 'endocil\[wandb\]'"):
        endocil.run({**TINY, "run": {"wandb": True}, "data": {"name": "folder", "root": "nowhere"}}, "nowhere-run")
