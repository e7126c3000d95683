"""Hyper-Kvasir, the labelled images (Borgli et al., 2020): labeled-images/<organ>/<category>/<class>/<file>.jpg."""

from endocil.data.table import ImageTable
from endocil.datasets.public.downloads import find_download
from endocil.datasets.public.facts import SIMULA_TERMS, Archive, DataSet, parse_counts
from endocil.datasets.public.tables import Row, SplitFormat, table_of, with_official_parts
from endocil.io.archives import Progress

FACTS = DataSet(
    name="hyper-kvasir",
    title="Hyper-Kvasir, labelled images",
    variable="HYPER_KVASIR",
    pages=("https://datasets.simula.no/hyper-kvasir/", "https://osf.io/mh9sj"),
    archives=(
        Archive(
            "hyper-kvasir-labeled-images.zip",
            "labeled-images/<organ>/<category>/<class>/<file>.jpg",
            "https://datasets.simula.no/downloads/hyper-kvasir/hyper-kvasir-labeled-images.zip",
            3_928_814_344,
            "c603449b1bc0be86948b11d9aea8b2002058a11e6f5499e2a384b9ae9c8dbd3f",
        ),
    ),
    place="Extract the archive anywhere, or leave it as it is; root is the folder or the archive.",
    licence=SIMULA_TERMS,
    citation=(
        "Borgli et al., HyperKvasir, a comprehensive multi-class image and video dataset for gastrointestinal "
        "endoscopy, Scientific Data 7, 283 (2020), doi 10.1038/s41597-020-00622-y"
    ),
    splits=(
        "2_fold_split.csv and 5_fold_split.csv in official_splits of github.com/simula/hyper-kvasir, by image; give "
        "one by data.splits"
    ),
    counts={
        "": parse_counts(
            "barretts 41; barretts-short-segment 53; bbps-0-1 646; bbps-2-3 1148; cecum 1009; dyed-lifted-polyps 1002; "
            "dyed-resection-margins 989; esophagitis-a 403; esophagitis-b-d 260; hemorrhoids 6; ileum 9; "
            "impacted-stool 131; polyps 1028; pylorus 999; retroflex-rectum 391; retroflex-stomach 764; "
            "ulcerative-colitis-grade-0-1 35; ulcerative-colitis-grade-1 201; ulcerative-colitis-grade-1-2 11; "
            "ulcerative-colitis-grade-2 443; ulcerative-colitis-grade-2-3 28; ulcerative-colitis-grade-3 133; "
            "z-line 932"
        )
    },
    aliases={
        "normal-cecum": "cecum",
        "hemorroids": "hemorrhoids",
        "polyp": "polyps",
        "normal-pylorus": "pylorus",
        "normal-z-line": "z-line",
        "short-segment-barretts": "barretts-short-segment",
        "oesophagitis-a": "esophagitis-a",
        "oesophagitis-b-d": "esophagitis-b-d",
        "ulcerative-colitis-0-1": "ulcerative-colitis-grade-0-1",
        "ulcerative-colitis-1-2": "ulcerative-colitis-grade-1-2",
        "ulcerative-colitis-2-3": "ulcerative-colitis-grade-2-3",
    },
    inside=(
        *("lower-gi-tract", "upper-gi-tract", "anatomical-landmarks", "pathological-findings"),
        *("quality-of-mucosal-views", "therapeutic-interventions"),
    ),
    presets=("hyper-kvasir",),
    remarks=("There are no patient or video numbers: near duplicates are the only groups to be had.",),
)

_SPLIT = SplitFormat(r"\d_fold_split\.csv", "file-name", "class-name", "split-index")


def load(*, root: str, splits: str | None = None, progress: Progress | None = None) -> ImageTable:
    """The images at `root`, a folder or the archive; `splits` is one of the official k-fold lists."""
    download = find_download(FACTS, root, progress=progress)
    rows, notes = with_official_parts(download, [Row.of(entry) for entry in download.entries], _SPLIT, splits)
    return table_of(download, rows, notes)
