"""Requests made from the API's own description, sound ones and broken ones: none makes the server fail."""

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

schemathesis = pytest.importorskip("schemathesis")

from schemathesis.checks import load_all_checks, not_a_server_error  # noqa: E402
from schemathesis.generation import GenerationMode  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from endocil.serve.app import create_app  # noqa: E402
from endocil.serve.guard import Limits  # noqa: E402
from endocil.serve.monitoring import Log  # noqa: E402
from endocil.serve.served_models import ServedModels  # noqa: E402
from endocil.serve.served_runs import Runs  # noqa: E402
from endocil.serve.service import Service  # noqa: E402

load_all_checks()
TAKE = (  # operations that take anything, which can be wrong
    "GET /api/v1/models/{id}",
    "PUT /api/v1/models/{id}",
    "GET /api/v1/models/{id}/exemplars/{digest}/{row}.png",
    "POST /api/v1/predict",
    "POST /api/v1/gradcam",
    "GET /api/v1/runs/{id}/report",
)
CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["sound", "broken"])
def test_no_request_makes_the_server_fail(versions: Path, log_stream: io.StringIO, mode: GenerationMode) -> None:
    paths = [versions / "v1.endocil", versions / "v2.endocil"]
    service = Service(ServedModels.load(paths, versions), Runs(versions), Limits(upload_megabytes=1))
    app = create_app(service, names=frozenset({"testserver"}), log=Log(log_stream))
    tried = []
    for found in schemathesis.openapi.from_asgi("/api/v1/openapi.json", app).get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.POSITIVE or operation.label in TAKE:
            tried.append(operation.label)
            _try(operation, mode)
    samples = [sample for metric in service.metrics.requests.collect() for sample in metric.samples]
    statuses = {int(sample.labels["status"]) for sample in samples}
    assert len(tried) == (11 if mode is GenerationMode.POSITIVE else len(TAKE))
    assert 200 in statuses or mode is GenerationMode.NEGATIVE
    assert max(statuses) < 500


def _try(operation: Any, mode: GenerationMode) -> None:
    @settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        case.call_and_validate(checks=CHECKS)

    check()
