"""The four public data sets in miniature: the real spellings, and every trap that the real ones have.

Each `write_*` function makes the folder as the official archive unpacks; `packed_*` make the archives.
"""

import io
import os
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from PIL import Image


def picture(suffix: str) -> bytes:
    """A picture of two pixels."""
    file = io.BytesIO()
    Image.new("RGB", (2, 1), (120, 60, 30)).save(file, {".jpg": "JPEG", ".png": "PNG"}[suffix.lower()])
    return file.getvalue()


PICTURES = {suffix: picture(suffix) for suffix in (".jpg", ".png")}


def write(root: Path, files: Iterable[str]) -> Path:
    """Images where the name is an image's, some bytes elsewhere."""
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PICTURES.get(path.suffix.lower(), b"something else"))
    return root


def write_unlisted(folder: Path) -> tuple[str, ...]:
    """Folders that nobody can list, below a folder: their names, in order. One has a path that is longer than the
    system takes, with a picture at its end; two are links, in a circle and to a folder that is gone."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "circle").symlink_to("circle")
    (folder / "gone").symlink_to("nowhere")
    here = os.open(folder, os.O_RDONLY)
    for _ in range(17):
        os.mkdir("n" * 250, dir_fd=here)
        below = os.open("n" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    with os.fdopen(os.open("0.png", os.O_WRONLY | os.O_CREAT, dir_fd=here), "wb") as file:
        file.write(PICTURES[".png"])
    os.close(here)
    return "circle", "gone", "/".join(["n" * 250] * ((4095 - len(str(folder))) // 251 + 1))


def write_csv(path: Path, lines: Iterable[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


# --- Hyper-Kvasir: class folders below two levels; one in odd case; the lists use other class names

HYPER_KVASIR = {
    "lower-gi-tract/anatomical-landmarks/cecum": ["aa-1.jpg", "aa-2.jpg"],
    "lower-gi-tract/anatomical-landmarks/ileum": ["bb-1.jpg"],
    "lower-gi-tract/pathological-findings/hemorrhoids": ["cc-1.jpg"],
    "lower-gi-tract/pathological-findings/polyps": ["dd-1.jpg", "dd-2.jpg"],
    "lower-gi-tract/pathological-findings/ulcerative-colitis-grade-0-1": ["ee-1.jpg"],
    "lower-gi-tract/quality-of-mucosal-views/BBPS-0-1": ["ff-1.JPG"],
    "upper-gi-tract/anatomical-landmarks/pylorus": ["gg-1.jpg"],
    "upper-gi-tract/anatomical-landmarks/z-line": ["hh-1.jpg"],
    "upper-gi-tract/pathological-findings/barretts-short-segment": ["ii-1.jpg"],
    "upper-gi-tract/pathological-findings/esophagitis-a": ["jj-1.jpg"],
}
HYPER_KVASIR_IDS = (
    *("barretts-short-segment/ii-1.jpg", "bbps-0-1/ff-1.JPG", "cecum/aa-1.jpg", "cecum/aa-2.jpg"),
    *("esophagitis-a/jj-1.jpg", "hemorrhoids/cc-1.jpg", "ileum/bb-1.jpg", "polyps/dd-1.jpg", "polyps/dd-2.jpg"),
    *("pylorus/gg-1.jpg", "ulcerative-colitis-grade-0-1/ee-1.jpg", "z-line/hh-1.jpg"),
)
FIVE_FOLD = (
    "file-name;class-name;split-index",
    *("aa-1.jpg;normal-cecum;0", "aa-2.jpg;normal-cecum;4", "bb-1.jpg;ileum;1", "cc-1.jpg;hemorroids;2"),
    *("dd-1.jpg;polyp;3", "dd-2.jpg;polyp;0", "ee-1.jpg;ulcerative-colitis-0-1;1", "ff-1.jpg;bbps-0-1;2"),
    *("gg-1.jpg;normal-pylorus;3", "hh-1.jpg;normal-z-line;4", "ii-1.jpg;short-segment-barretts;0"),
    *("jj-1.jpg;oesophagitis-a;1", "zz-9.jpg;polyp;2"),  # the last is not on the disk
)


def write_hyper_kvasir(root: Path) -> Path:
    top = root / "labeled-images"
    write(top, [f"{folder}/{name}" for folder, names in HYPER_KVASIR.items() for name in names])
    write(top, [".DS_Store", "lower-gi-tract/.DS_Store", "readme.txt"])
    write_csv(top / "image-labels.csv", ["Video file,Organ,Finding,Classification", "aa-1,Lower GI,cecum,x"])
    return root


# --- GastroVision: names repeat between classes, a zip inside a zip of the same name

GASTROVISION = {
    "Barrett's esophagus": ["100H0003.jpg", "b.jpg"],
    "Colon polyps": ["100H0003.jpg", "ba615bcd.jpg"],
    "Gastroesophageal_junction_normal z-line": ["c.jpg"],
    "Small bowel_terminal ileum": ["100H0003.jpg"],
    "Dyed-lifted-polyps": ["d.jpg"],
    "Ulcer": ["e.jpg"],  # not in the official split
}
GASTROVISION_IDS = tuple(sorted(f"{name}/{file}" for name, files in GASTROVISION.items() for file in files))
GASTROVISION_SPLIT = {
    "train": [
        "100H0003.jpg,Barrett's esophagus",
        "ba615bcd.jpg,Colon polyps",
        "c.jpg,Gastroesophageal_junction_normal z-line",
    ],
    "validate": ["100H0003.jpg,Colon polyps", "d.jpg,Dyed-lifted-polyps"],
    "test": ["100H0003.jpg,Small bowel_terminal ileum", "b.jpg,Barrett's esophagus"],
}


def write_gastrovision(root: Path) -> Path:
    top = root / "Gastrovision"
    write(top, [f"{folder}/{name}" for folder, names in GASTROVISION.items() for name in names])
    write(top, [".DS_Store", "Ulcer/.DS_Store", "Colon polyps/.DS_Store"])
    return root


def write_gastrovision_split(folder: Path) -> Path:
    for part, lines in GASTROVISION_SPLIT.items():
        write_csv(folder / f"{part}.csv", ["Filename,Class", *lines])
    return folder


# --- Kvasir-Capsule: videos and frames in the names, frames in two classes, a zip of one tar.gz for each class

VIDEO_A, VIDEO_B = "eb0203196e284797", "64440803f87b4843"
KVASIR_CAPSULE = {
    "Ampulla of vater": [f"{VIDEO_A}_7.jpg"],
    "Blood - fresh": [f"{VIDEO_B}_10.jpg", f"{VIDEO_B}_11.jpg"],
    "Blood - hematin": [f"{VIDEO_A}_90.jpg"],
    "Erosion": [f"{VIDEO_A}_1125.jpg", f"{VIDEO_A}_1126.jpg"],
    "Foreign body": [f"{VIDEO_B}_5.jpg"],
    "Ileocecal valve": [f"{VIDEO_B}_900.jpg"],
    "Normal clean mucosa": [f"{VIDEO_A}_1.jpg", f"{VIDEO_B}_1.jpg"],
    "Pylorus": [f"{VIDEO_A}_1125.jpg", f"{VIDEO_A}_2000.jpg"],
    "Reduced mucosal view": [f"{VIDEO_B}_70.jpg"],
}
KVASIR_CAPSULE_IDS = tuple(sorted(f"{name}/{file}" for name, files in KVASIR_CAPSULE.items() for file in files))
KVASIR_CAPSULE_SPLIT = {
    "split_0": [
        f"{VIDEO_B}_10.jpg,Blood",
        f"{VIDEO_B}_11.jpg,Blood",
        f"{VIDEO_B}_5.jpg,Foreign Bodies",
        f"{VIDEO_B}_1.jpg,Normal",
    ],
    "split_1": [
        *(f"{VIDEO_A}_1125.jpg,Erosion", f"{VIDEO_A}_1125.jpg,Pylorus", f"{VIDEO_A}_1126.jpg,Erosion"),
        *(f"{VIDEO_A}_2000.jpg,Pylorus", f"{VIDEO_A}_1.jpg,Normal", f"{VIDEO_B}_900.jpg,Ileo-cecal valve"),
        f"{VIDEO_B}_70.jpg,Reduced Mucosal View",
    ],
}


def write_kvasir_capsule(root: Path, *, odd_case: bool = False) -> Path:
    for folder, names in KVASIR_CAPSULE.items():
        write(root / "labelled_images", [f"{folder.title() if odd_case else folder}/{name}" for name in names])
    write_csv(root / "metadata.csv", ["filename;video_id;frame_number;finding_category", "x;y;1;Anatomy"])
    return root


def write_kvasir_capsule_split(folder: Path) -> Path:
    for name, lines in KVASIR_CAPSULE_SPLIT.items():
        write_csv(folder / f"{name}.csv", ["filename,label", *lines])
    return folder


def pack_kvasir_capsule(folder: Path, *, flat: bool) -> Path:
    """One tar.gz for each class, with or without the class's folder inside."""
    folder.mkdir(parents=True)
    for label, names in KVASIR_CAPSULE.items():
        name = label.lower().replace(" - ", "_").replace(" ", "_")
        with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as file:
            for image in names:
                add_to_tar(file, image if flat else f"./{label}/{image}", PICTURES[".jpg"])
    return folder


# --- Capsule Vision: a level of sources, tables with backslashes, a flat test set labelled elsewhere

CAPSULE_VISION = (
    "training/Angioectasia/KID/angioectasia-P0-1.jpg",
    f"training/Angioectasia/KVASIR/{VIDEO_A}_893.jpg",
    "training/Erosion/SEE-AI/image00042.jpg",
    f"training/Foreign Body/KVASIR/{VIDEO_B}_17.jpg",
    "training/Normal/KID/normal-1.jpg",
    "training/Worms/AIIMS/worm1_50.jpg",
    f"validation/Angioectasia/KVASIR/{VIDEO_A}_894.jpg",
    "validation/Polyp/SEE-AI/image00042.jpg",  # a name of training, in another class
)
CAPSULE_TEST = {"a1b2c3d4e5.jpg": "Bleeding", "f6g7h8i9j0.jpg": "Foreign Body"}
CAPSULE_CLASSES = (
    *("Angioectasia", "Bleeding", "Erosion", "Erythema", "Foreign Body"),
    *("Lymphangiectasia", "Normal", "Polyp", "Ulcer", "Worms"),
)


def write_capsule_vision(root: Path, *, sources: bool = True, inline: bool = False) -> Path:
    for path in CAPSULE_VISION:
        part, label, _, name = path.split("/")
        write(root / "Dataset", [path if sources else f"{part}/{label}/{name}"])
    for part in ("training", "validation"):
        lines = [_one_hot(path) for path in CAPSULE_VISION if path.startswith(part)]
        header = ("image_path", "Dataset", *CAPSULE_CLASSES)
        write_xlsx(root / f"Dataset/{part}/{part}_data.xlsx", [header, *lines], inline=inline)
    return root


def write_capsule_test(root: Path) -> Path:
    return write(root, [f"Testing set/Images/{name}" for name in (*CAPSULE_TEST, "0000000000.jpg")])


def write_capsule_labels(path: Path) -> Path:
    rows = [("C:\\organisers\\Images\\" + name, label) for name, label in CAPSULE_TEST.items()]
    return write_xlsx(path, [("image_path", "class_label"), *rows])


def _one_hot(path: str) -> tuple[str | int, ...]:
    _, label, source, _ = path.split("/")
    return (path.replace("/", "\\"), source, *(int(name == label) for name in CAPSULE_CLASSES))


# --- containers


def zip_folder(folder: Path, archive: Path) -> Path:
    """All files below a folder, with what a Mac adds."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                file.write(path, path.relative_to(folder).as_posix())
        file.writestr("__MACOSX/._something.jpg", b"not an image")
    return archive


def zip_files(archive: Path, files: Mapping[str, bytes]) -> Path:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in files.items():
            file.writestr(name, data)
    return archive


def add_to_tar(file: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    file.addfile(member, io.BytesIO(data))


SPACE = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"


def xlsx_parts(sheets: Sequence[str], strings: Sequence[str] = ()) -> dict[str, str]:
    """The parts of a workbook; the files of its sheets are numbered from the last one on."""
    numbers = range(len(sheets), 0, -1)
    links = "".join(
        f'<Relationship Id="rId{n}" Type="{_OFFICE}/worksheet" Target="worksheets/sheet{n}.xml"/>' for n in numbers
    )
    named = "".join(f'<sheet name="Sheet{n}" sheetId="{n}" r:id="rId{n}"/>' for n in numbers)
    overrides = "".join(
        f'<Override PartName="/xl/{name}.xml" ContentType="{_TYPE}.{kind}+xml"/>'
        for name, kind in (("workbook", "sheet.main"), ("sharedStrings", "sharedStrings"))
    )
    texts = "".join(f"<si><r><t>{escape(text[:3])}</t></r><r><t>{escape(text[3:])}</t></r></si>" for text in strings)
    return {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types">{overrides}</Types>',
        "xl/workbook.xml": f'<workbook {SPACE} xmlns:r="{_OFFICE}"><sheets>{named}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">{links}</Relationships>',
        "xl/sharedStrings.xml": f"<sst {SPACE}>{texts}</sst>",
        **{f"xl/worksheets/sheet{n}.xml": text for n, text in zip(numbers, sheets, strict=True)},
    }


def write_xlsx(path: Path, rows: Sequence[Sequence[str | int]], *, inline: bool = False) -> Path:
    """Two sheets, the second with totals, as the organisers' tables; texts shared or inline; empty cells left out."""
    strings: list[str] = []

    def cell(column: int, line: int, value: str | int) -> str:
        place = f'r="{chr(65 + column)}{line}"'
        if isinstance(value, int):
            return f"<c {place}><v>{value}</v></c>"
        if inline:
            return f'<c {place} t="inlineStr"><is><t>{escape(value)}</t></is></c>'
        strings.append(value)
        return f'<c {place} t="s"><v>{len(strings) - 1}</v></c>'

    lines = [
        f'<row r="{i}">' + "".join(cell(column, i, value) for column, value in enumerate(row) if value != "") + "</row>"
        for i, row in enumerate(rows, start=1)
    ]
    first, second = (
        f"<worksheet {SPACE}><sheetData>{text}</sheetData></worksheet>"
        for text in ("".join(lines), '<row r="1"><c r="A1"><v>9</v></c></row>')
    )
    parts = xlsx_parts([first, second], strings)
    return zip_files(path, {name: text.encode() for name, text in parts.items()})
