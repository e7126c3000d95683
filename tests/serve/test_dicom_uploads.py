"""DICOM in the server as in `endocil predict`: every frame is an image, and a hostile file is one error."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import UID, DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian, JPEGBaseline8Bit, generate_uid
from serve.conftest import Client, form

from endocil.model.model import Model
from endocil.serve.guard import Limits

PREDICT = "/api/v1/predict?top=5"


def dicom(pixels: np.ndarray, syntax: UID = ExplicitVRLittleEndian, frame: bytes = b"") -> bytes:
    """Frames (n, H, W, 3) as a file; `frame`: compressed bytes in their place."""
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = syntax
    data.SOPClassUID, data.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.77.1.1", generate_uid()
    data.PatientName, data.SamplesPerPixel, data.PhotometricInterpretation = "Secret^Somebody", 3, "RGB"
    data.NumberOfFrames, data.Rows, data.Columns = pixels.shape[:3]
    data.BitsAllocated = data.BitsStored = 8
    data.HighBit, data.PixelRepresentation, data.PlanarConfiguration = 7, 0, 0
    data.PixelData = encapsulate([frame]) if frame else pixels.tobytes()
    data["PixelData"].VR = "OB"
    file = io.BytesIO()
    data.save_as(file, enforce_file_format=True)
    return file.getvalue()


def frames(n: int, size: int = 40) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, size, size, 3), np.uint8)


def test_every_frame_is_predicted_as_by_the_model_itself(client: Client, versions: Path, pictures: list[bytes]) -> None:
    pixels = frames(3)
    body = client.post(PREDICT, files=form(pictures[0], dicom(pixels), dicom(pixels[:1]))).json()
    places = [(image["index"], image["frame"]) for image in body["images"]]
    assert places == [(0, None), (1, 1), (1, 2), (1, 3), (2, None)]
    expected = Model.load(versions / "v1.endocil").predict(list(pixels))
    for image, row in zip(body["images"][1:4], expected.probabilities, strict=True):
        served = {one["name"]: one["probability"] for one in image["predictions"][0]["top"]}
        assert served == pytest.approx(dict(zip(expected.classes, row.tolist(), strict=True)), abs=1e-4)
    assert body["images"][4]["predictions"] == body["images"][1]["predictions"]


def test_a_damaged_file_is_one_error_and_repeats_nothing_of_the_file(client: Client, pictures: list[bytes]) -> None:
    whole = dicom(frames(1))
    answer = client.post(PREDICT, files=form(whole[:200], pictures[0], whole[:-2000]))
    first, second, third = answer.json()["images"]
    assert (first["error"]["code"], third["error"]["code"]) == ("unreadable", "unreadable")
    assert second["error"] is None
    assert "Secret" not in answer.text


def test_more_frames_than_images_may_be_sent_are_refused_before_they_are_decoded(
    serving: Callable[..., Client],
) -> None:
    client = serving(limits=Limits(images=4))
    assert client.post(PREDICT, files=form(dicom(frames(4, 16)))).status_code == 200
    answer = client.post(PREDICT, files=form(dicom(frames(5, 16))))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too-large")


def test_a_file_that_inflates_and_a_frame_that_is_larger_than_its_header_are_refused(client: Client) -> None:
    deflated = dicom(frames(1), DeflatedExplicitVRLittleEndian)
    large = io.BytesIO()
    Image.new("RGB", (3000, 3000)).save(large, "JPEG")
    lying = dicom(frames(1), JPEGBaseline8Bit, large.getvalue())
    first, second = client.post(PREDICT, files=form(deflated, lying)).json()["images"]
    assert "deflated as a whole" in first["error"]["message"]
    assert "its frame 3000 x 3000" in second["error"]["message"]
