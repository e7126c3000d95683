"""Kvasir-Capsule, the labelled images (Smedsrud et al., 2021): <class>/<video>_<frame>.jpg."""

import re
from dataclasses import replace

from endocil.data.table import ImageTable
from endocil.datasets.public.downloads import find_download
from endocil.datasets.public.facts import SIMULA_TERMS, Archive, DataSet, parse_counts
from endocil.datasets.public.tables import (
    Row,
    SplitFormat,
    listed,
    repeated_names,
    table_of,
    with_official_parts,
)
from endocil.io.archives import Progress

_DRIVE = "https://github.com/simula/kvasir-capsule (its README links a folder of Google Drive)"

FACTS = DataSet(
    name="kvasir-capsule",
    title="Kvasir-Capsule, labelled images",
    variable="KVASIR_CAPSULE",
    pages=("https://osf.io/dv2ag/", "https://datasets.simula.no/kvasir-capsule/", _DRIVE),
    archives=(
        Archive(
            "labelled_images.zip",
            "one .tar.gz for each class; packed anew for each download, so that no checksum fits",
            "https://files.osf.io/v1/resources/dv2ag/providers/googledrive/labelled_images/?zip=",
        ),
        Archive(
            "metadata.csv",
            "beside the images: video, frame, finding and box of each; not needed here",
            sha256="480373e840c48d7cad45aede92bdc8fa5a7c0064e6b22470d38af9f2032642f5",
        ),
    ),
    place=(
        "Leave the zip as it is, or extract it; the .tar.gz files of the classes may stay as they are. root is the "
        "zip, or the folder of the .tar.gz files or of the class folders."
    ),
    licence=f"{SIMULA_TERMS}; the README of another public loader says CC BY-SA 4.0",
    citation=(
        "Smedsrud et al., Kvasir-Capsule, a video capsule endoscopy dataset, Scientific Data 8, 142 (2021), "
        "doi 10.1038/s41597-021-00920-z"
    ),
    splits=(
        "split_0.csv and split_1.csv in official_splits of github.com/simula/kvasir-capsule, two folds of 11 classes; "
        "7 videos are in both; give the folder by data.splits"
    ),
    counts={
        "": parse_counts(
            "Ampulla of vater 10; Angiectasia 866; Blood - fresh 446; Blood - hematin 12; Erosion 506; Erythema 159; "
            "Foreign body 776; Ileocecal valve 4189; Lymphangiectasia 592; Normal clean mucosa 34338; Polyp 55; "
            "Pylorus 1529; Reduced mucosal view 2906; Ulcer 854"
        )
    },
    aliases={
        "Normal": "Normal clean mucosa",
        "Ileo-cecal valve": "Ileocecal valve",
        "Foreign Bodies": "Foreign body",
        "Blood": "Blood - fresh",
        "Erythematous": "Erythema",
    },
    presets=("kvasir-capsule", "kvasir-capsule-with-normal"),
    remarks=(
        "A file name is <video>_<frame>: images are grouped by video. Some classes come from two or three videos.",
        "8 frames are in two classes, Erosion and Pylorus; the paper's counts need both.",
        "Ampulla of vater and Blood - hematin: 22 images together; 10 and 12 are not checked.",
    ),
)

_SPLIT = SplitFormat(r"split_(\d)\.csv", "filename", "label")
_FRAME = re.compile(r"(.+)_(\d{1,9})\.\w+")


def load(*, root: str, splits: str | None = None, progress: Progress | None = None) -> ImageTable:
    """The images at `root`, a folder or an archive; `splits` is the folder of the two official lists."""
    download = find_download(FACTS, root, progress=progress)
    rows, notes = with_official_parts(download, [Row.of(entry) for entry in download.entries], _SPLIT, splits)
    double = repeated_names(rows)
    if double:
        notes.append(f"{len(double)} frames are in two classes, and kept in both: {listed(double)}.")
    return table_of(download, [with_video(row, _FRAME) for row in rows], notes)


def with_video(row: Row, pattern: re.Pattern[str]) -> Row:
    """The video is the group; the name of an image tells it, and the number of the frame."""
    matched = pattern.fullmatch(row.name)
    return replace(row, group=matched[1], frame=int(matched[2])) if matched else row
