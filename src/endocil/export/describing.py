"""What whoever runs an ONNX file has to know, in the file: classes, how pixels are made, how to use what comes out."""

import json
from typing import TYPE_CHECKING, Any

from endocil.bundle.content import Content
from endocil.bundle.manifest import Calibration, Preprocessing
from endocil.evaluation import CLASS_MEANS
from endocil.images import frame
from endocil.notice import NOTICE

if TYPE_CHECKING:
    import onnx

INPUT = (
    "uint8, batch x height x width x (red, green, blue), values from 0 to 255; the graph normalises them by mean and "
    "deviation"
)
DECODING = (  # images/decode.py and modes.py in words
    "the first page or frame of a file",
    "upright: turned and mirrored as the EXIF orientation of the file says",
    "transparent parts lie on black",
    "gray of 16 bits: value // 257; gray of 32 bits: as 8 bits where no value is above 255, else as 16 bits; floats: "
    "times 255 where none is above 1, as they are where none is above 255, else divided by 257, then rounded",
    "CMYK and every other mode: to RGB as Pillow's convert('RGB') does; colour profiles are not applied",
)
RESIZING = (
    "to size x size whatever the shape, by a bilinear filter that averages over all the pixels that shrink into one "
    "(Pillow's BILINEAR)"
)
SHRINKING = (  # images/jpeg.py in words
    "a gray or RGB JPEG whose shorter side is at least 9/8 of 2, 4 or 8 times the size is decoded by libjpeg at 1/2, "
    "1/4 or 1/8, the smallest that applies, and resized from there; decoding it whole gives slightly other pixels"
)
FRAME = {  # images/frame.py in words
    "rules": frame.RULES,
    "black": frame.BLACK,
    "squares": frame.SQUARES,
    "edge": frame.EDGE,
    "smallest": frame.SMALLEST,
    "how": "before resizing, from the picture decoded whole, without shrinking: a pixel is lit where its brightest "
    "channel is above black; lay squares of ceil(longer side / squares) pixels from the upper left corner; a square is "
    "lit where at least half its pixels are; the view is the largest area of lit squares that touch by their sides; "
    "take its box and one square more on each side; trim rows, and then columns, from both ends while less than the "
    "share edge of their pixels in the box is lit; where nothing is lit, or the box has less than the share smallest "
    "of the picture, nothing is cut",
}
SCORE = {  # how unlike anything learned an image is: by the spread of features, by class means, without either
    "spread": "the output unlike_score",
    "means": "square root of the smallest of mean_distances",
    "logits": "minus the largest of logits",
}
MEANS = "softmax of -mean_distances / mean_temperature"


def describe(model: "onnx.ModelProto", content: Content) -> None:
    """Write it into the model's metadata."""
    import onnx

    from endocil import __version__

    manifest = content.manifest
    name = manifest.name.encode("utf-8", "backslashreplace").decode()  # of a file, it may be no text
    said: dict[str, Any] = {
        "notice": NOTICE,
        "name": name,
        "classes": json.dumps(content.classes),
        "preprocessing": json.dumps(preprocessing_of(manifest.preprocessing)),
        "calibration": json.dumps(manifest.calibration and calibration_of(manifest.calibration, content)),
        "bundle": content.digest,
        "endocil": __version__,
    }
    model.producer_name, model.producer_version = "endocil", __version__
    model.doc_string = f"{NOTICE} {name}: {len(content.classes)} classes."
    onnx.helper.set_model_props(model, said)


def preprocessing_of(rules: Preprocessing) -> dict[str, Any]:
    """The constants, and in words what is done with a picture before it is pixels of the right size."""
    steps = {"decoding": list(DECODING)}
    cut: dict[str, Any] = {"frame": FRAME} if rules.crop_frame else {"shrinking": SHRINKING}
    return {"input": INPUT, **rules.model_dump(mode="json"), **steps, **cut, "resizing": RESIZING}


def calibration_of(fitted: Calibration, content: Content) -> dict[str, Any]:
    """Without a threshold there is a score, and nothing says from where on an image is unlike anything learned."""
    has_means = CLASS_MEANS in content.statistics
    score = SCORE["spread" if content.spread else "means" if has_means else "logits"]
    if fitted.unlike_threshold is not None:
        score += "; unlike where it is above unlike_threshold"
    means = {"mean_probabilities": MEANS} if has_means else {}
    return {**fitted.model_dump(mode="json"), "unlike_score": score, **means}
