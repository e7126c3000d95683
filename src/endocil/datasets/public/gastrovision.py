"""GastroVision (Jha et al., 2023): Gastrovision/<class>/<file>.jpg, also as {train,val,test}/<class>/<file>.jpg."""

from endocil.data.table import ImageTable
from endocil.datasets.public.downloads import find_download
from endocil.datasets.public.facts import Archive, DataSet, parse_counts
from endocil.datasets.public.tables import (
    Row,
    SplitFormat,
    listed,
    repeated_names,
    table_of,
    with_official_parts,
)
from endocil.io.archives import Progress

FACTS = DataSet(
    name="gastrovision",
    title="GastroVision",
    variable="GASTROVISION",
    pages=(
        "https://osf.io/84e7f/",
        "https://github.com/DebeshJha/GastroVision (its README links a folder of Google Drive)",
    ),
    archives=(
        Archive(
            "Gastrovision.zip",
            "Gastrovision/<class>/<file>.jpg, at least once inside a second zip of the same name",
            "https://osf.io/download/gvx3q/",
            1_793_518_442,
            "583bb7c35871c7e1414f2357aaaee74a724c41367860177ef63eeec74e011800",
        ),
    ),
    place="Extract the archive anywhere, or leave it as it is; root is the folder or the archive.",
    licence=(
        "not resolved: its repository states none; of two public records one says CC BY-NC 4.0, the other CC BY 4.0; "
        "read it on the page"
    ),
    citation=(
        "Jha, Sharma et al., GastroVision: A Multi-class Endoscopy Image Dataset for Computer Aided Gastrointestinal "
        "Disease Detection, ICML Workshop on Machine Learning for Multimodal Healthcare Data (2023)"
    ),
    splits=(
        "train.csv, validate.csv and test.csv in Split of github.com/DebeshJha/GastroVision, by image, of the 22 "
        "classes with more than 25 images; give the folder by data.splits"
    ),
    counts={
        "": parse_counts(
            "Accessory tools 1266; Angiectasia 17; Barrett's esophagus 95; Blood in lumen 171; Cecum 113; "
            "Colon diverticula 29; Colon polyps 820; Colorectal cancer 139; Duodenal bulb 205; Dyed-lifted-polyps 141; "
            "Dyed-resection-margins 246; Erythema 15; Esophageal varices 7; Esophagitis 107; Gastric polyps 65; "
            "Gastroesophageal_junction_normal z-line 330; Ileocecal valve 200; Mucosal inflammation large bowel 29; "
            "Normal esophagus 140; Normal mucosa and vascular pattern in the large bowel 1467; Normal stomach 969; "
            "Pylorus 393; Resected polyps 92; Resection margins 25; Retroflex rectum 67; "
            "Small bowel_terminal ileum 846; Ulcer 6"
        )
    },
    aliases={},
    presets=("gastrovision",),
    remarks=("There are no patient or video numbers. File names repeat between classes.",),
)

_SPLIT = SplitFormat(r"(train|validate|test)\.csv", "Filename", "Class")


def load(*, root: str, splits: str | None = None, progress: Progress | None = None) -> ImageTable:
    """The images at `root`, a folder or the archive; `splits` is the folder of train, validate and test.csv."""
    download = find_download(FACTS, root, progress=progress)
    rows, notes = with_official_parts(download, [Row.of(entry) for entry in download.entries], _SPLIT, splits)
    repeated = repeated_names(rows)
    if repeated:
        notes.append(
            f"{len(repeated)} file names occur in several classes ({listed(repeated, 2)}): an image is known by "
            f"class and name."
        )
    return table_of(download, rows, notes)
