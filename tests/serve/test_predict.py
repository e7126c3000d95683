"""The API predicts as the model does, for single images and in batches; every response carries the disclaimer."""

import io
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from present import present
from serve.conftest import Client, LogStream, form, png, queued, until
from torch import Tensor
from untrained import CLASSES, write_untrained

from endocil.model.model import Model
from endocil.model.predictions import Predictions
from endocil.serve.served_models import ServedModel

DISCLAIMER = "Research software, not for clinical use."
PREDICT = "/api/v1/predict"


def predicted_by(model: Path, picture: bytes, folder: Path) -> dict[str, float]:
    """Class to probability, by the model itself from a file."""
    file = folder / "picture"
    file.write_bytes(picture)
    predictions = Model.load(model).predict([file])
    return dict(zip(predictions.classes, predictions.probabilities[0].tolist(), strict=True))


def probabilities(prediction: dict[str, Any]) -> dict[str, float]:
    return {one["name"]: one["probability"] for one in prediction["top"]}


def test_the_api_predicts_as_the_model_does_from_files(
    client: Client, versions: Path, pictures: list[bytes], tmp_path: Path
) -> None:
    jpeg = png(np.random.default_rng(0).integers(0, 256, (400, 300, 3), np.uint8), "JPEG")
    body = client.post(f"{PREDICT}?top=5", files=form(*pictures[:3], jpeg)).json()
    assert body["disclaimer"] == DISCLAIMER
    for image, picture in zip(body["images"], [*pictures[:3], jpeg], strict=True):
        (prediction,) = image["predictions"]
        expected = predicted_by(versions / "v1.endocil", picture, tmp_path)
        assert probabilities(prediction) == pytest.approx(expected, abs=1e-4)
        assert prediction["digest"] == client.service.models.get("model-1").digest
        assert prediction["calibrated"] is True


def test_the_most_probable_class_comes_first(client: Client, pictures: list[bytes]) -> None:
    (image,) = client.post(f"{PREDICT}?top=2&nearest=8", files=form(pictures[0])).json()["images"]
    (prediction,) = image["predictions"]
    first, second = prediction["top"]
    assert first["probability"] >= second["probability"]
    assert len(prediction["nearest_mean"]) == 2
    assert len(prediction["nearest"]) == 8


def test_requests_that_wait_together_are_answered_by_one_pass_and_alike(
    client: Client, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = [client.post(f"{PREDICT}?top=5", files=form(one)).json()["images"][0] for one in pictures]
    held, begun = threading.Event(), threading.Event()
    service, sizes = client.service, list[int]()
    right = service.engine.predict

    def slow(loaded: ServedModel, pixels: Tensor) -> Predictions:
        sizes.append(len(pixels))
        begun.set()
        assert held.wait(30)
        return right(loaded, pixels)

    monkeypatch.setattr(service.engine, "predict", slow)
    with ThreadPoolExecutor(len(pictures)) as pool:
        first = pool.submit(client.post, f"{PREDICT}?top=5", files=form(pictures[0]))
        assert begun.wait(30)
        others = [pool.submit(client.post, f"{PREDICT}?top=5", files=form(one)) for one in pictures[1:]]
        until(lambda: queued(service) == len(others))
        held.set()
        together = [one.result().json()["images"][0] for one in (first, *others)]
    assert sizes == [1, len(pictures) - 1]
    for one, other in zip(alone, together, strict=True):
        assert probabilities(one["predictions"][0]) == pytest.approx(probabilities(other["predictions"][0]), abs=1e-4)
        assert one["predictions"][0]["ood_score"] == pytest.approx(other["predictions"][0]["ood_score"], abs=1e-4)


def test_two_versions_answer_on_the_same_images(
    client: Client, versions: Path, pictures: list[bytes], tmp_path: Path
) -> None:
    body = client.post(f"{PREDICT}?model=model-2&compare=model-1&top=5", files=form(*pictures[:2])).json()
    for image, picture in zip(body["images"], pictures, strict=False):
        second, first = image["predictions"]
        assert (second["model"], first["model"]) == ("model-2", "model-1")
        assert probabilities(first) == pytest.approx(predicted_by(versions / "v1.endocil", picture, tmp_path), abs=1e-4)
        assert probabilities(second) == pytest.approx(
            predicted_by(versions / "v2.endocil", picture, tmp_path), abs=1e-4
        )


def test_an_unreadable_image_has_a_problem_and_the_others_their_answers(client: Client, pictures: list[bytes]) -> None:
    body = client.post(PREDICT, files=form(pictures[0], b"no picture", b"", pictures[1], pictures[2][:60])).json()
    assert [bool(image["predictions"]) for image in body["images"]] == [True, False, False, True, False]
    problems = [image["error"] for image in body["images"]]
    assert [problem and problem["code"] for problem in problems] == [
        None,
        "unreadable",
        "unreadable",
        None,
        "unreadable",
    ]
    assert problems[1]["message"] == "not a BMP, JPEG, PNG, TIFF or WebP image, or damaged"
    alone = client.post(PREDICT, files=form(pictures[1])).json()["images"][0]["predictions"]
    assert probabilities(body["images"][3]["predictions"][0]) == pytest.approx(probabilities(alone[0]), abs=1e-4)


def test_exemplars_are_those_of_the_model_without_their_provenance(client: Client, pictures: list[bytes]) -> None:
    response = client.post(f"{PREDICT}?nearest=3", files=form(pictures[0]))
    near = response.json()["images"][0]["predictions"][0]["nearest"]
    exemplars = client.service.models.get("model-1").model.exemplars
    for one in near:
        got = client.get(one["url"])
        assert got.headers["content-type"] == "image/png"
        pixels = np.asarray(Image.open(io.BytesIO(got.content)))
        assert (pixels == exemplars.pixels[one["exemplar"]].numpy()).all()
        assert one["class_name"] == exemplars.provenance[one["exemplar"]].class_name
    assert "secret" not in response.text
    assert "secret" not in client.get("/api/v1/models/model-1").text
    digest = client.service.models.get("model-1").digest[:16]
    assert client.get(f"/api/v1/models/model-1/exemplars/{digest}/15.png").status_code == 404
    other = client.service.models.get("model-2").digest[:16]
    assert client.get(f"/api/v1/models/model-1/exemplars/{other}/0.png").status_code == 404


def test_only_calibrated_models_flag_images_as_out_of_distribution(
    serving: Callable[..., Client], pictures: list[bytes], tmp_path: Path
) -> None:
    plain = write_untrained(tmp_path / "plain.endocil", "finetune", calibrated=False, pictures=False)
    client = serving(plain)
    (image,) = client.post(PREDICT, files=form(pictures[0])).json()["images"]
    (prediction,) = image["predictions"]
    assert (
        prediction["out_of_distribution"],
        prediction["calibrated"],
        prediction["nearest_mean"],
        prediction["nearest"],
    ) == (None, False, None, [])


def test_an_image_above_the_threshold_is_flagged(client: Client, versions: Path, pictures: list[bytes]) -> None:
    model = Model.load(versions / "v1.endocil")
    body = client.post(PREDICT, files=form(*pictures)).json()["images"]
    threshold = present(model.manifest.calibration).ood_threshold
    for image in body:
        (prediction,) = image["predictions"]
        assert prediction["out_of_distribution"] == (prediction["ood_score"] > threshold)


def test_the_card_shows_what_the_model_records(client: Client) -> None:
    card = client.get("/api/v1/models/model-2").json()
    assert card["model"]["name"] == "second"
    assert [one["name"] for one in card["classes"]] == list(CLASSES)
    assert card["exemplars"] == dict.fromkeys(CLASSES, 3)
    assert card["calibration"]["temperature"] == 1.7
    assert card["disclaimer"] == DISCLAIMER


def test_models_lists_what_answers_and_the_limits(client: Client) -> None:
    body = client.get("/api/v1/models").json()
    assert [one["id"] for one in body["models"]] == ["model-1", "model-2"]
    assert body["limits"]["upload_bytes"] == 32_000_000
    assert (body["files"], body["runs"]) == ([], False)


def test_metrics_count_requests_images_and_passes(client: Client, pictures: list[bytes]) -> None:
    client.post(PREDICT, files=form(*pictures[:2], b"none"))
    text = client.get("/api/v1/metrics").text
    assert text.startswith(f"# {DISCLAIMER}\n")
    assert 'endocil_requests_total{route="/api/v1/predict",status="200"} 1' in text
    assert 'endocil_images_total{outcome="predicted"} 2' in text
    assert 'endocil_images_total{outcome="unreadable"} 1' in text
    assert "endocil_forward_images_total 2" in text
    assert "endocil_upload_bytes 0" in text
    assert 'endocil_predict_seconds_bucket{le="+Inf"} 1' in text


def test_every_response_and_every_page_carries_the_disclaimer(client: Client, pictures: list[bytes]) -> None:
    good = ["/", "/docs", "/api/v1/health", "/api/v1/metrics", "/api/v1/models", "/api/v1/openapi.json", "/api/v1/runs"]
    for path in good:
        response = client.get(path)
        assert response.status_code == 200
        assert DISCLAIMER in response.text, path
    for path in ("/nothing", "/api/v1/models/model-9", "/api/v1/models/x", "/assets/", "/api/v1/predict"):
        response = client.get(path)
        assert response.status_code in (404, 405, 422)
        assert response.json()["disclaimer"] == DISCLAIMER
        assert set(response.json()["error"]) == {"code", "message"}


def test_the_log_is_json_without_names_or_content(client: Client, pictures: list[bytes], log_stream: LogStream) -> None:
    client.post(f"{PREDICT}?model=model-1&top=4", files=[("images", ("Jane Doe 1970.png", pictures[0]))])
    client.get("/Jane/Doe?name=Jane")
    client.post("/api/v1/predict?model=Jane", files=form(pictures[0]))
    lines = [json.loads(line) for line in log_stream.lines]
    assert "Jane" not in log_stream.getvalue()
    assert "patient" not in log_stream.getvalue()
    assert [line["event"] for line in lines] == ["started", "request", "request", "request"]
    facts = lines[1]
    assert (facts["route"], facts["status"], facts["images"]) == ("/api/v1/predict", 200, 1)
    assert facts["bytes"] > len(pictures[0])
    assert lines[2]["route"] == "other"


def test_a_failure_is_reported_without_its_content(
    client: Client, pictures: list[bytes], log_stream: LogStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(loaded: object, pixels: object) -> object:
        raise ZeroDivisionError("Jane Doe")

    monkeypatch.setattr(client.service.engine, "predict", broken)
    response = client.post(PREDICT, files=form(pictures[0]))
    assert (response.status_code, response.json()["error"]["code"]) == (500, "failed")
    assert "Jane" not in response.text + log_stream.getvalue()
    assert '"kind": "ZeroDivisionError"' in log_stream.getvalue()
    monkeypatch.undo()
    assert client.post(PREDICT, files=form(pictures[0])).status_code == 200  # the thread goes on
