"""Grad-CAM over the API: the picture of `endocil predict --gradcam`, on request, without holding up predictions."""

import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import endocil
from PIL import Image
from serve.conftest import Client, form, png, until
from serve.test_dicom_uploads import dicom, frames
from untrained import write_untrained

from endocil.model import DISCLAIMER
from endocil.model.model import Model
from endocil.serve import service as serving_service
from endocil.serve.guard import Limits
from endocil.serve.served_models import ServedModel

GRADCAM, PREDICT = "/api/v1/gradcam", "/api/v1/predict"


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def wide() -> bytes:
    return png(np.random.default_rng(1).integers(0, 256, (90, 130, 3), np.uint8))


def test_the_image_has_its_own_size_and_is_the_one_of_the_command(
    client: Client, versions: Path, tmp_path: Path
) -> None:
    (tmp_path / "wide.png").write_bytes(wide())
    model = versions / "v1.endocil"
    endocil("predict", model, tmp_path / "wide.png", "-o", tmp_path / "out.csv", "--gradcam", tmp_path / "cam")
    (expected,) = (tmp_path / "cam").iterdir()
    answer = client.post(GRADCAM, files=form(wide()))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "image/png"
    drawn = Image.open(io.BytesIO(answer.content))
    assert drawn.size == (130, 90)
    assert np.array_equal(np.asarray(drawn), np.asarray(Image.open(expected)))
    predicted = client.post(PREDICT, files=form(wide())).json()["images"][0]["predictions"][0]
    assert answer.headers["x-endocil-model"] == predicted["digest"]
    told = {"Disclaimer": DISCLAIMER, "Model": predicted["digest"], "Class": predicted["top"][0]["name"]}
    assert drawn.info == told


def test_the_class_and_the_model_can_be_chosen(serving: Callable[..., Client], versions: Path, tmp_path: Path) -> None:
    client = serving(write_untrained(tmp_path / "large.endocil", size=96), versions / "v2.endocil")
    names = Model.load(tmp_path / "large.endocil").classes
    drawn = [
        Image.open(io.BytesIO(client.post(GRADCAM, params={"class_name": name}, files=form(wide())).content))
        for name in names
    ]
    assert [one.info["Class"] for one in drawn] == list(names)
    assert len({one.tobytes() for one in drawn}) > 1
    other = client.post(GRADCAM, params={"model": "model-2"}, files=form(wide()))
    assert other.headers["x-endocil-model"] == client.get("/api/v1/models/model-2").json()["model"]["digest"]


def test_any_frame_of_a_dicom_file_is_drawn(client: Client) -> None:
    pixels = frames(3, 56)
    answer = client.post(GRADCAM, params={"frame": 2}, files=form(dicom(pixels)))
    assert Image.open(io.BytesIO(answer.content)).size == (56, 56)
    assert answer.content == client.post(GRADCAM, files=form(dicom(pixels[1:2]))).content
    assert code(client.post(GRADCAM, params={"frame": 4}, files=form(dicom(pixels)))) == (404, "not-found")


def test_what_cannot_be_drawn_is_refused_in_one_sentence(serving: Callable[..., Client]) -> None:
    client = serving(limits=Limits(megapixels=0.02))
    assert code(client.post(GRADCAM, files=form(b"no image"))) == (422, "unreadable")
    assert code(client.post(GRADCAM, files=form(png(np.zeros((200, 200, 3), np.uint8))))) == (422, "unreadable")
    assert code(client.post(GRADCAM, files=form(wide(), wide()))) == (413, "too-large")
    assert code(client.post(GRADCAM, params={"class_name": "unheard of"}, files=form(wide()))) == (404, "not-found")
    assert code(client.post(GRADCAM, params={"frame": 2}, files=form(wide()))) == (404, "not-found")
    assert code(client.post(GRADCAM, params={"model": "model-3"}, files=form(wide()))) == (404, "not-found")


def test_a_model_without_feature_maps_says_so(
    serving: Callable[..., Client], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "flat.endocil"
    write_untrained(path, seed=0)
    client = serving(path)
    assert client.get("/api/v1/models").json()["models"][0]["gradcam"] is True
    monkeypatch.setattr("endocil.serve.service.last_blocks", lambda method: [])
    monkeypatch.setattr("endocil.serve.served_models.last_blocks", lambda method: [])
    assert client.get("/api/v1/models").json()["models"][0]["gradcam"] is False
    assert code(client.post(GRADCAM, files=form(wide()))) == (422, "no-gradcam")


class Held:
    """Backward passes that wait until they are released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.let, self.begun, right = threading.Semaphore(0), 0, ServedModel.evidence

        def evidence(model: ServedModel, *how: Any) -> tuple[np.ndarray, str]:
            self.begun += 1
            assert self.let.acquire(timeout=60)
            return right(model, *how)

        monkeypatch.setattr(ServedModel, "evidence", evidence)


def test_only_a_few_are_drawn_at_once_and_predictions_wait_for_one_at_most(
    serving: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, client = Held(monkeypatch), serving()
    with ThreadPoolExecutor(serving_service.GRADCAMS + 1) as pool:
        drawing = [pool.submit(client.post, GRADCAM, files=form(wide())) for _ in range(serving_service.GRADCAMS)]
        until(lambda: len(client.service.engine._calls) == serving_service.GRADCAMS - 1)
        assert code(client.post(GRADCAM, files=form(wide()))) == (429, "busy")
        predicting = pool.submit(client.post, PREDICT, files=form(wide()))
        until(lambda: client.service.engine._jobs)
        held.let.release()  # one of four
        assert predicting.result(60).status_code == 200
        assert held.begun == 2
        held.let.release(serving_service.GRADCAMS)
        assert [one.result(60).status_code for one in drawing] == [200] * serving_service.GRADCAMS
    assert client.post(GRADCAM, files=form(wide())).status_code == 200
