"""Damaged and hostile images, DICOM files, archives and folders, the same for the same seed, and what becomes of them.

`run` puts numbers `start` to `stop` through the package in a process of its own, with little memory beyond what the
libraries need and a time limit for each file: a hang, a crash or an unexpected exception is found by the parent.
"""

import contextlib
import io
import json
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

MEMORY = 2 * 2**30  # bytes beyond what the libraries have mapped; an image of the largest accepted size fits
SECONDS = 10  # of the processor, for one file
PATIENCE = 300  # seconds that pass for one file that waits, on a busy machine
SUFFIXES = (".jpg", ".png", ".bmp", ".tif", ".webp", ".jpeg", ".TIFF")


@cache
def pictures() -> dict[str, bytes]:
    """A small sound file of every kind."""
    pixels = np.random.default_rng(0).integers(0, 255, (40, 56, 3), np.uint8)
    pixels[10:30, 10:40] //= 4
    rgb = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 6
    pages: dict[str, Any] = {"save_all": True, "append_images": [rgb.rotate(90), rgb.rotate(180)]}
    deep = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    kinds: dict[str, tuple[Image.Image, str, dict[str, Any]]] = {
        "jpeg": (rgb, "JPEG", {"exif": exif}),
        "large jpeg": (rgb.resize((448, 320)), "JPEG", {"quality": 60}),
        "progressive jpeg": (rgb.resize((224, 160)), "JPEG", {"progressive": True}),
        "gray jpeg": (rgb.convert("L"), "JPEG", {}),
        "cmyk jpeg": (rgb.convert("CMYK"), "JPEG", {}),
        "png": (rgb, "PNG", {}),
        "png with alpha": (rgb.convert("RGBA"), "PNG", {}),
        "palette png": (rgb.convert("P"), "PNG", {"transparency": 3}),
        "16-bit png": (deep, "PNG", {}),
        "animated png": (rgb, "PNG", pages),
        "bmp": (rgb, "BMP", {}),
        "palette bmp": (rgb.convert("P"), "BMP", {}),
        "tiff": (rgb, "TIFF", pages),
        "lzw tiff": (rgb, "TIFF", {"compression": "tiff_lzw"}),
        "deflate tiff": (rgb, "TIFF", {"compression": "tiff_adobe_deflate"}),
        "jpeg tiff": (rgb, "TIFF", {"compression": "jpeg"}),
        "fax tiff": (rgb.convert("1"), "TIFF", {"compression": "group4"}),
        "16-bit tiff": (deep, "TIFF", {}),
        "webp": (rgb, "WEBP", {}),
        "lossless webp": (rgb.convert("RGBA"), "WEBP", {"lossless": True}),
        "animated webp": (rgb, "WEBP", pages),
    }
    files = {}
    for name, (image, kind, options) in kinds.items():
        buffer = io.BytesIO()
        image.save(buffer, kind, **options)
        files[name] = buffer.getvalue()
    return files


def png(width: int, height: int, data: bytes) -> bytes:
    """An 8-bit RGB PNG that claims to be of this size."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@cache
def bombs() -> dict[str, bytes]:
    """Small files that claim, or really hold, very many pixels, and files of nothing."""
    zeros = zlib.compress(bytes(10_000_000), 9)
    webp, bmp = bytearray(pictures()["lossless webp"]), bytearray(pictures()["bmp"])
    webp[21:25] = b"\xff\xff\xff\x0f"  # 16384 x 16384
    bmp[18:26] = struct.pack("<ii", 2**30, 2**30)
    jpeg = bytearray(pictures()["jpeg"])
    size = jpeg.index(b"\xff\xc0") + 5
    jpeg[size : size + 4] = b"\xff\xff\xff\xff"
    text = b"\x00\x00\x00\x00zTXtbomb\x00\x00" + zeros
    return {
        "png of 10^19 pixels": png(2**31 - 1, 2**31 - 1, zeros),
        "png of 2.5 billion pixels": png(50_000, 50_000, zeros),
        "png just below the limit": png(9_400, 9_400, zeros),
        "png of one line": png(89_000_000, 1, zeros),
        "png with a text bomb": pictures()["png"][:33] + struct.pack(">I", len(text) - 8) + text[4:],
        "webp of 16384 x 16384": bytes(webp),
        "bmp of 2^60 pixels": bytes(bmp),
        "jpeg of 65535 x 65535": bytes(jpeg),
        "nothing": b"",
        "one byte": b"\xff",
        "zeros": bytes(5000),
        "text": b"GIF89a and then no image",
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    }


def damage(data: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """Cut, flip, overwrite, repeat, remove, splice: what disks, networks and attackers do."""
    content = bytearray(data)
    n = len(content)
    kind = chance.randrange(8)
    if kind == 0:
        return data[: chance.randrange(n)]
    if kind == 1:
        for _ in range(chance.choice((1, 1, 3, 20, 200))):
            content[chance.randrange(n)] ^= 1 << chance.randrange(8)
    elif kind == 2:  # a number in the header becomes a strange one
        place = chance.randrange(min(n, 200))
        content[place : place + 4] = chance.choice(
            (b"\xff\xff\xff\xff", bytes(4), b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", chance.randbytes(4))
        )
    elif kind == 3:
        place = chance.randrange(n)
        content[place : place + chance.randrange(1, 400)] = chance.randbytes(chance.randrange(400))
    elif kind == 4:
        place, length = chance.randrange(n), chance.randrange(1, 200)
        content[place:place] = content[place : place + length] * chance.randrange(1, 30)
    elif kind == 5:
        place = chance.randrange(n)
        del content[place : place + chance.randrange(1, 200)]
    elif kind == 6:
        other = chance.choice(others)
        return data[: chance.randrange(n)] + other[chance.randrange(len(other)) :]
    else:
        place = chance.randrange(n)
        content[place:] = bytes(n - place)
    return bytes(content)


def damaged(sound: dict[str, bytes], bad: dict[str, bytes], seed: str, number: int) -> tuple[str, bytes]:
    """File `number`: first every hostile file once, then sound ones damaged once or several times."""
    if number < len(bad):
        return list(bad.items())[number]
    chance = random.Random(f"{seed} {number}")
    name = list(sound)[number % len(sound)]
    data = sound[name]
    for _ in range(chance.choice((1, 1, 2, 4))):
        data = damage(data, chance, list(sound.values())) or b"\0"
    return name, data


@cache
def archives() -> dict[str, bytes]:
    """Sound archives of two images."""
    images = {"polyps/1.jpg": pictures()["jpeg"], "polyps/deep/2.png": pictures()["png"]}
    plain = zipped(images)
    return {
        "zip": plain,
        "zip in zip": zipped({"inner.zip": plain}),
        "tar": tarred(images, "w"),
        "tar.gz": tarred(images, "w:gz"),
        "tar.gz in zip": zipped({"class.tar.gz": tarred(images, "w:gz")}),
    }


OUTSIDE = (
    "../evil.png", "../../evil.png", "a/../../evil.png", "/OUTER/evil.png", "..\\evil.png", "C:\\evil.png",
    "./../evil.png", "a/b/../../../evil.png", "\\OUTER\\evil.png", "..", "/", "//evil/evil.png",
)  # fmt: skip


@cache
def hostile_archives(outer: Path) -> dict[str, bytes]:
    """Names that lead out, links, and archives that are larger than they look."""
    found: dict[str, bytes] = {}
    for name in OUTSIDE:
        files = {name.replace("OUTER", str(outer).strip("/")): pictures()["png"]}
        found |= {f"zip with {name}": zipped(files), f"tar with {name}": tarred(files, "w")}
        found[f"zip in zip with {name}"] = zipped({"x/inner.zip": zipped(files)})
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.BLKTYPE):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as file:
            link = tarfile.TarInfo("here")
            link.type, link.linkname = kind, str(outer)
            file.addfile(link)
            entry = tarfile.TarInfo("here/evil.png")
            entry.size = 4
            file.addfile(entry, io.BytesIO(b"evil"))
        found[f"tar with a member of type {kind!r}"] = buffer.getvalue()
    zeros = bytes(50_000_000)
    found |= {"zip bomb": zipped({"a.bmp": zeros}), "tar.gz bomb": tarred({"a.bmp": zeros}, "w:gz")}
    deep = zipped({"a.png": pictures()["png"]})
    for _ in range(12):
        deep = zipped({"b.zip": deep})
    return found | {"twelve zips in each other": deep, "nothing": b"", "zeros": bytes(3000), "text": b"PK\x03\x04"}


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in files.items():
            file.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def tarred(files: dict[str, bytes], mode: Any) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as file:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            file.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def try_images(start: int, stop: int) -> dict[str, Any]:
    """Decode each file by itself, then all of them through the cache: the same ones must be unreadable."""
    from endocil.data.cache import load_images
    from endocil.data.decode import FileReader, decode
    from endocil.data.table import ImageTable, UnreadableImageError

    results = Results()
    with tempfile.TemporaryDirectory() as folder:
        names, unreadable = [], []
        for number in range(start, stop):
            kind, data = damaged(pictures(), bombs(), "image", number)
            names.append(f"{number}{SUFFIXES[number % len(SUFFIXES)]}")
            (Path(folder) / names[-1]).write_bytes(data)
            if not results.of(number, kind, partial(decode, data, 32), UnreadableImageError):
                unreadable.append(names[-1])
        n = len(names)
        table = ImageTable(tuple(names), np.zeros(n), ("a",), FileReader(Path(folder)), ("",) * n, ("",) * n)
        limit_time(10)
        loaded = load_images(table, 32, folder=Path(folder) / "cache", skip_unreadable=True)
        if [name for name, _ in loaded.skipped] != unreadable:
            results.failures.append("the cache and the decoder do not refuse the same files")
    return results.summary()


def try_archives(start: int, stop: int) -> dict[str, Any]:
    """Extract each archive into a folder of its own, and look for anything beside that folder."""
    from endocil.errors import EndocilError
    from endocil.io.archives import Limits, extract

    results = Results()
    with tempfile.TemporaryDirectory() as name:
        outer = Path(name)
        for number in range(start, stop):
            kind, data = damaged(archives(), hostile_archives(outer), "archive", number)
            place = outer / "in" / str(number)
            place.mkdir(parents=True)
            (place / "archive").write_bytes(data)
            limits = Limits(total=20_000_000)
            target = place / "target"
            job = partial(extract, place / "archive", target, limits=limits)
            good = results.of(number, kind, job, EndocilError)
            left = {path.name for path in place.iterdir()}
            if left != ({"archive", "target"} if good else {"archive"}) or os.listdir(outer) != ["in"]:
                results.failures.append(f"{number} ({kind}): files were left outside, {sorted(left)}")
    return results.summary()


def limit_time(files: int = 1) -> None:
    """From now on, for this number of files: what hangs, in C code too, ends the process. 0: no limit any more."""
    signal.setitimer(signal.ITIMER_PROF, files * SECONDS)
    signal.alarm(files * PATIENCE)


class Results:
    def __init__(self) -> None:
        self.good, self.reasons, self.failures, self.slowest = 0, Counter[str](), list[str](), 0.0

    def of(self, number: int, kind: str, job: Callable[[], object], refusal: type[Exception]) -> bool:
        """True where the job worked; a refusal has to be one line."""
        limit_time()
        began = time.process_time()
        try:
            job()
        except refusal as error:
            reason = str(error)
            self.reasons[reason[:60]] += 1
            if not reason or "\n" in reason:
                self.failures.append(f"{number} ({kind}): the reason is not one line: {reason!r}")
            return False
        except BaseException as error:
            self.failures.append(f"{number} ({kind}): {type(error).__name__}: {traceback.format_exc()[-600:]}")
            return False
        finally:
            self.slowest = max(self.slowest, time.process_time() - began)
        self.good += 1
        return True

    def summary(self) -> dict[str, Any]:
        limit_time(0)
        refused, peak = self.reasons.total(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        return {
            "good": self.good,
            "refused": refused,
            "failures": self.failures,
            "slowest": self.slowest,
            "megabytes": peak,
        }


@cache
def dicoms() -> dict[str, bytes]:
    """Sound DICOM files: gray frames as they are and packed, and a JPEG inside."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.encaps import encapsulate
    from pydicom.uid import ExplicitVRLittleEndian, JPEGBaseline8Bit, RLELossless, generate_uid

    files = {}
    for name, syntax in (("dicom", ExplicitVRLittleEndian), ("rle dicom", RLELossless), ("jpeg dicom", None)):
        image = Dataset()
        image.file_meta = FileMetaDataset()
        image.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian if syntax else JPEGBaseline8Bit
        image.SOPClassUID, image.SOPInstanceUID = ("1.2.840.10008.5.1.4.1.1.77.1.1", generate_uid(entropy_srcs=[name]))
        image.Rows, image.Columns, image.BitsAllocated, image.BitsStored, image.HighBit = 40, 56, 8, 8, 7
        image.PixelRepresentation, image.SamplesPerPixel = 0, 1
        image.PhotometricInterpretation = "MONOCHROME2"
        image.WindowCenter, image.WindowWidth = 100, 150
        gray = pictures()["bmp"][-40 * 56 * 2 :]
        if syntax:
            image.NumberOfFrames, image.PixelData = 2, gray
        else:
            image.PixelData = encapsulate([pictures()["gray jpeg"]])
        image["PixelData"].VR = "OB"
        if syntax == RLELossless:
            image.compress(RLELossless, generate_instance_uid=False)
        buffer = io.BytesIO()
        image.save_as(buffer, enforce_file_format=True)
        files[name] = buffer.getvalue()
    return files


def try_dicom(start: int, stop: int) -> dict[str, Any]:
    """Find the frames of each file, and read the last one."""
    from endocil.data.table import UnreadableImageError
    from endocil.datasets.dicom import load

    results = Results()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(start, stop):
            kind, data = damaged(dicoms(), {}, "dicom", number)
            path = Path(folder) / str(number) / "class" / "file.dcm"
            path.parent.mkdir(parents=True)
            path.write_bytes(data)

            def read(root: Path = path.parents[1]) -> None:
                table = load(root=str(root), group_by="PatientID")
                table.reader.read(table.ids[-1], 16)

            results.of(number, kind, read, UnreadableImageError)
    return results.summary()


def trap(place: Path, kind: str, number: int) -> None:
    """Something in a folder that is no picture, or a link that leads where it should not."""
    name = place / f"{number}.jpg"
    if kind == "pipe":
        os.mkfifo(name)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(place):
            server.bind(name.name)  # by a short name: a socket's path has few letters
    elif kind == "folder":
        name.mkdir()
    elif kind == "name that is no UTF-8":
        Path(os.fsdecode(os.fsencode(place) + b"/p\xf3lyp\xff%d.png" % number)).write_bytes(pictures()["png"])
    elif kind == "odd name":
        (place / f"{number} \n\t\x1b[31m;,\u202e.png").write_bytes(pictures()["png"])
    else:
        name.symlink_to(LINKS[kind])


LINKS = {
    "link to zeros": "/dev/zero",
    "link to random bytes": "/dev/urandom",
    "link to the terminal": "/dev/tty",
    "link to a process's memory": "/proc/self/mem",
    "link to nothing": "nowhere.jpg",
    "link to itself": ".",
    "link to a sibling": "../0",
    "link to another sibling": "../1",
    "link to the top": "..",
    "link to the root": "/",
}
TRAPS = ("pipe", "socket", "folder", "name that is no UTF-8", "odd name", *LINKS)


def try_folders(start: int, stop: int) -> dict[str, Any]:
    """Three classes of two pictures, with traps among them: every picture counts once, and no trap holds it up."""
    from endocil.data.cache import load_images
    from endocil.datasets.folder import load
    from endocil.errors import EndocilError

    results = Results()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(start, stop):
            chance = random.Random(f"folder {number}")
            root = Path(folder) / str(number)
            kinds = [TRAPS[number % len(TRAPS)], *chance.choices(TRAPS, k=chance.randrange(4))]
            for label in range(3):
                (root / str(label)).mkdir(parents=True)
                for name in ("a.png", "b.png"):
                    (root / str(label) / name).write_bytes(pictures()["png"])
            for place, kind in enumerate(kinds, start=100):
                trap(root / str(chance.randrange(3)), kind, place)

            def read(root: Path = root, kinds: list[str] = kinds) -> None:
                table = load(root=str(root))
                images = load_images(table, 16, folder=Path(folder) / "cache", skip_unreadable=True)
                assert len(images.table) == 6 + sum("name" in kind for kind in kinds), images.table.ids

            results.of(number, ", ".join(kinds), read, EndocilError)
    return results.summary()


Job = tuple[str, int, int]  # a kind of KINDS, first number, number behind the last
KINDS = (
    *("images", "dicom", "archives", "folders", "lists", "settings", "runs"),
    *("cache", "skipped", "checkpoints", "made", "requests"),
)


def serve(jobs: list[Job]) -> None:
    """In the process of its own: limits first, then the files."""
    import torch  # noqa: F401  (its memory is none of a file's)
    from damaged_made import MADE
    from damaged_records import ATTEMPTS

    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    files = {"images": try_images, "dicom": try_dicom, "archives": try_archives, "folders": try_folders}
    attempts = files | ATTEMPTS | MADE
    print(json.dumps([attempts[what](start, stop) for what, start, stop in jobs]))


def run(*jobs: Job) -> list[dict[str, Any]]:
    """What became of the files of each job; a process that died is a failure."""
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    code = f"import damaged; damaged.serve({list(jobs)!r})"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        ended = f"{jobs}: the process ended with {done.returncode}: {done.stderr[-1500:]}"
        return [{"good": 0, "refused": 0, "failures": [ended]} for _ in jobs]
    summaries: list[dict[str, Any]] = json.loads(done.stdout)
    return summaries
