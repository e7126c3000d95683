"""Damaged and hostile models, the same for the same number, tried in a process of its own with limits.

Even numbers are a sound model cut, flipped or overwritten; odd ones hold changed content under the right digest, as an
attacker would sign it: first each of `crafted`, then random changes of the manifest, tables, pictures, weights, names.
What predicts is, for each of `crafted` and a share of the others, also listed, drawn, made to forget a picture and to
learn a class from files.
"""

import csv
import hashlib
import io
import json
import os
import pickle
import random
import signal
import struct
import subprocess
import sys
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import damaged

MEMORY = 2**30  # bytes beyond what the libraries have mapped
SECONDS = 60  # for one model, on a busy machine
SHARE = 4  # of so many random models that predict, one is put through the other commands
PLANTED = "planted_by_the_fuzzer"  # a module that must never be imported

Members = list[tuple[str, bytes]]
MANIFEST, WEIGHTS = "manifest.json", "weights.safetensors"


def members_of(data: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(entry.filename, archive.read(entry)) for entry in archive.infolist()]


def signed(members: Members, how: int = zipfile.ZIP_STORED) -> bytes:
    """An archive under its right digest, with any names and any compression."""
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", how) as archive:
        warnings.simplefilter("ignore", UserWarning)  # a name twice
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, how)
        archive.comment = b"0" * 64
    return sign(file.getvalue())


def sign(data: bytes) -> bytes:
    body = data[:-64]
    return body + hashlib.sha256(body).hexdigest().encode()


def changed(members: Members, name: str, change: Callable[[bytes], bytes]) -> Members:
    return [(one, change(data) if one == name else data) for one, data in members]


def in_manifest(*keys: Any, to: Any) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        said = json.loads(data)
        place = said
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = to
        return json.dumps(said).encode()

    return change


def in_header(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    """Of safetensors: a length of 8 bytes, JSON, values."""

    def rewritten(data: bytes) -> bytes:
        (n,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + n])
        change(header)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + n :]

    return rewritten


def filled_with(value: float, word: str) -> Callable[[bytes], bytes]:
    """The values of the first tensor whose name has this word."""

    def change(data: bytes) -> bytes:
        (n,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + n])
        offsets: tuple[int, int] = next(facts["data_offsets"] for name, facts in header.items() if word in name)
        begin, end = offsets
        values = struct.pack("<f", value) * ((end - begin) // 4)
        return data[: 8 + n + begin] + values + data[8 + n + end :]

    return change


class _Runs:
    """Imports the planted module when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return __import__, (PLANTED,)


def crafted(data: bytes) -> dict[str, bytes]:
    """What someone with bad intent would try, each once."""
    sound = members_of(data)
    picture = dict(sound)["exemplars/000000.png"]
    size = struct.unpack(">I", picture[16:20])[0]
    huge = damaged.png(60_000, 60_000, zlib.compress(bytes(60_001)))
    wide = damaged.png(size, size * 1000, zlib.compress(bytes(1000)))

    def manifest(*keys: Any, to: Any) -> bytes:
        return signed(changed(sound, MANIFEST, in_manifest(*keys, to=to)))

    def weights(change: Callable[[bytes], bytes]) -> bytes:
        return signed(changed(sound, WEIGHTS, change))

    def one_shape(header: dict[str, Any]) -> None:
        next(facts for name, facts in header.items() if "conv1" in name)["shape"] = [2**40, 2**40]

    def empty_shape(header: dict[str, Any]) -> None:
        header["method/none"] = {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}

    def renamed(header: dict[str, Any]) -> None:
        header["method/other.weight"] = header.pop(next(name for name in header if "conv1" in name))

    def other_type(header: dict[str, Any]) -> None:
        next(facts for name, facts in header.items() if "running_mean" in name)["dtype"] = "I32"

    nested = b"[" * 200_000 + b"]" * 200_000
    many = [{"name": str(i), "task": 0, "images": 1} for i in range(9_000)]
    planted = f"{PLANTED}:Thing"
    return {
        "pickle as a member": signed([*sound, ("evil.pkl", pickle.dumps(_Runs()))]),
        "pickle as weights": weights(lambda _: pickle.dumps(_Runs())),
        "pickle alone": pickle.dumps(_Runs()),
        "name that leaves the folder": signed([*sound, ("../../evil.py", b"import os")]),
        "absolute name": signed([*sound, ("/tmp/evil.py", b"import os")]),
        "name of Windows": signed([*sound, ("C:\\evil.py", b"import os")]),
        "name of a module": signed([*sound, (f"{PLANTED}.py", b"open('evil', 'w')")]),
        "name twice": signed([*sound, sound[0]]),
        "compressed": signed(sound, zipfile.ZIP_DEFLATED),
        "zip bomb": signed([*sound, ("exemplars/999999.png", bytes(10_000_000))], zipfile.ZIP_DEFLATED),
        "no members": signed([]),
        "no weights": signed([pair for pair in sound if pair[0] != WEIGHTS]),
        "no manifest": signed([pair for pair in sound if pair[0] != MANIFEST]),
        "newer format": manifest("format", to=4),
        "much newer format": manifest("format", to=10**3000),
        "older format": manifest("format", to=0),
        "method from outside": manifest("settings", "method", "name", to=planted),
        "backbone from outside": manifest("settings", "network", "backbone", to=planted),
        "selector from outside": manifest("settings", "memory", "select", to=planted),
        "data from outside": manifest("settings", "data", "name", to=planted),
        "weights from a file": manifest("settings", "network", "weights", to="/etc/passwd"),
        "first tasks in a folder": manifest("settings", "run", "first_tasks", to="evil"),
        "pattern that never ends": signed(
            changed(
                changed(sound, MANIFEST, in_manifest("settings", "scenario", "groups", to="((?:a|aa)+)$")),
                MANIFEST,
                in_manifest("settings", "scenario", "split_by", to="group"),
            )
        ),
        "escape in a name": manifest("name", to="\x1b[2Jmodel"),
        "line in a history": manifest("history", 0, "note", to="tested\nsha256 0"),
        "escape in a setting": manifest("settings", "method", "\x1b[31m", to=1),
        "escape in a table": signed(
            changed(sound, "exemplars.csv", lambda old: old.replace(b",0,0,", b",0,0,\x1b[2J", 1))
        ),
        "absurd width": manifest("settings", "network", "width", to=8 * 10**9),
        "large width": manifest("settings", "network", "width", to=8192),
        "absurd kernels": manifest("settings", "memory", "kernels", to=10**12),
        "many classes": signed(
            changed(
                changed(sound, MANIFEST, in_manifest("classes", to=many)),
                MANIFEST,
                in_manifest("increments", to=[9_000]),
            )
        ),
        "too many classes": manifest("classes", to=many * 20),
        "many tasks": manifest("increments", to=[1] * 999),
        "too many tasks": manifest("increments", to=[0] * 10**6),
        "absurd size": manifest("preprocessing", "size", to=10**9),
        "another size": manifest("preprocessing", "size", to=2048),
        "both sizes": signed(
            changed(
                changed(sound, MANIFEST, in_manifest("preprocessing", "size", to=2048)),
                MANIFEST,
                in_manifest("settings", "data", "size", to=2048),
            )
        ),
        "infinite temperature": manifest("calibration", "temperature", to=float("inf")),
        "temperature 0": manifest("calibration", "temperature", to=0),
        "temperature of 1e999": signed(
            changed(sound, MANIFEST, lambda text: text.replace(b'"temperature": ', b'"temperature": 1e999, "x": ', 1))
        ),
        "nested manifest": signed(changed(sound, MANIFEST, lambda _: nested)),
        "nested settings": signed(
            changed(
                sound,
                MANIFEST,
                lambda text: text.replace(b'"metrics": {', b'"metrics": {"x": ' + b"[" * 900 + b"]" * 900 + b",", 1),
            )
        ),
        "huge manifest": signed(changed(sound, MANIFEST, lambda _: b"[" + b"[]," * 3_000_000 + b"[]]")),
        "manifest of one string": signed(changed(sound, MANIFEST, lambda _: b'"' + b"a" * 1_000_000 + b'"')),
        "NaN weights": weights(filled_with(float("nan"), "conv1")),
        "infinite class means": weights(filled_with(float("inf"), "class_means")),
        "negative variances": weights(filled_with(-1.0, "running_var")),
        "weights of 1e38": weights(filled_with(1e38, "conv1")),
        "absurd shape": weights(in_header(one_shape)),
        "empty tensor of an absurd shape": weights(in_header(empty_shape)),
        "tensor of another name": weights(in_header(renamed)),
        "tensor of another type": weights(in_header(other_type)),
        "header of an absurd length": weights(lambda old: struct.pack("<Q", 2**63) + old[8:]),
        "nested header": weights(lambda _: struct.pack("<Q", len(nested)) + nested),
        "PNG bomb": signed(changed(sound, "exemplars/000000.png", lambda _: huge)),
        "PNG of another shape": signed(changed(sound, "exemplars/000000.png", lambda _: wide)),
        "PNG without pixels": signed(changed(sound, "exemplars/000000.png", lambda old: old[:33])),
        "table of many rows": signed(
            changed(sound, "exemplars.csv", lambda old: old + old.splitlines()[1].join([b"\n"] * 100_000))
        ),
        "table of one cell": signed(changed(sound, "exemplars.csv", lambda old: old + b"a" * 10**6)),
        "table with other classes": signed(
            changed(sound, "exemplars.csv", lambda old: old.replace(b",0,0,", b"x,0,0,"))
        ),
        "table without pictures": signed([pair for pair in sound if not pair[0].startswith("exemplars/")]),
        "pictures without a table": signed([pair for pair in sound if pair[0] != "exemplars.csv"]),
    }


STRANGE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308, 1e-308, "", "0", "x" * 5000, "a\nb",
    "\u202e\x1b[31m", "\ud800", "../..", f"{PLANTED}:Thing", [], {}, [[]], [0] * 1000, {"": None}, "endocil", "icarl",
    "foster", "der", "resnet34", "NaN",
)  # fmt: skip


def resigned(data: bytes, number: int) -> tuple[str, bytes]:
    """Changed content under the right digest: what was changed, and the file."""
    chance = random.Random(f"signed {number}")
    members = members_of(data)
    what = chance.choice(
        ("manifest", "settings", "settings", "cells", "header", "weights", "csv", "png", "names", "zip")
    )
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        members = _another(members, what, chance)
    if what == "zip":  # the central directory and local headers, not what they frame
        whole = bytearray(signed(members))
        for _ in range(chance.choice((1, 2, 5))):
            whole[-chance.randrange(65, min(len(whole), 4000))] = chance.randrange(256)
        return what, sign(bytes(whole))
    return what, signed(members)


def _another(members: Members, what: str, chance: random.Random) -> Members:
    if what == "manifest":
        return changed(members, MANIFEST, lambda text: _mutated(text, chance))
    if what == "settings":
        return changed(members, MANIFEST, lambda text: _mutated(text, chance, "settings"))
    if what == "cells":
        table = chance.choice(("exemplars.csv", "held-out.csv"))
        return changed(members, table, lambda text: _with_another_cell(text, chance))
    if what == "header":
        return changed(members, WEIGHTS, in_header(lambda header: _mutate_header(header, chance)))
    if what == "names":
        return _renamed(members, chance)
    ends = {"csv": ".csv", "png": ".png", "weights": WEIGHTS}
    names = [name for name, _ in members if name.endswith(ends.get(what, "\0"))]
    if not names:
        return members
    others = [data for name, data in members if name in names]
    return changed(members, chance.choice(names), lambda old: damaged.damage(old, chance, others) if old else old)


def _with_another_cell(text: bytes, chance: random.Random) -> bytes:
    """That of another row, or a strange one: a table that can be read, of pictures that never were."""
    header, *rows = csv.reader(io.StringIO(text.decode()))
    column, row = chance.randrange(len(header)), chance.randrange(len(rows))
    odd = ("", "0", "1", "-1", str(10**30), "x" * 4000, "../x", "\u202e", "=1+1", "a,b", "\x1b[2J")
    rows[row][column] = chance.choice((chance.choice(rows)[column], chance.choice(odd)))
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator="\n").writerows([header, *rows])
    return file.getvalue().encode()


def _mutated(text: bytes, chance: random.Random, part: str | None = None) -> bytes:
    """Somewhere in the manifest, or in a part of it, another value, a key less, or a key more."""
    said = json.loads(text)
    place: Any = said[part] if part else said
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return text
        key = chance.choice(keys)
        inner = place[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.85:
            place = inner
            continue
        kind = chance.randrange(6)
        if kind == 0 and isinstance(place, dict):
            del place[key]
        elif kind == 1 and isinstance(place, dict):
            place[f"{key}x"] = chance.choice(STRANGE)
        elif kind == 2 and isinstance(inner, int | float):
            place[key] = inner * chance.choice((2, -1, 1000, 10**9)) + chance.choice((0, 1))
        elif kind == 3 and isinstance(place, list):
            place.append(inner)
        else:
            place[key] = chance.choice(STRANGE)
        return json.dumps(said).encode()


def _mutate_header(header: dict[str, Any], chance: random.Random) -> None:
    name = chance.choice(list(header))
    facts, kind = header[name], chance.randrange(6)
    if not isinstance(facts, dict) or kind == 0:
        header[name] = chance.choice(STRANGE)
    elif kind == 1:
        header[chance.choice((name + "x", "x", "", "method/", "statistics/class_means"))] = header.pop(name)
    elif kind == 2:
        facts["dtype"] = chance.choice(("F64", "F16", "BF16", "I64", "U8", "BOOL", "F8_E5M2", "X", "C64"))
    elif kind == 3 and isinstance(facts.get("shape"), list):
        facts["shape"] = chance.choice(
            (facts["shape"][::-1], [*facts["shape"], 1], [], [-1], [2**62, 4], [0], [1, *facts["shape"]])
        )
    elif kind == 4:
        facts["data_offsets"] = [chance.randrange(10**6), chance.randrange(10**6)]
    else:
        facts[chance.choice(("shape", "dtype", "data_offsets", "more"))] = chance.choice(STRANGE)


def _renamed(members: Members, chance: random.Random) -> Members:
    row = chance.randrange(len(members))
    name, data = members[row]
    kind = chance.randrange(4)
    if kind == 0:
        return members[:row] + members[row + 1 :]
    if kind == 1:
        return [*members, (chance.choice(members)[0], data)]
    names = ("../x", "/x", "exemplars/000001.png", "held-out/12.png", "weights.safetensors\0", "a" * 60_000, "ä")
    other = chance.choice((*names, f"{name}/x", name.upper(), f"{PLANTED}.py"))
    return [*members[:row], (other, data), *members[row + 1 :]]


def case(data: bytes, others: dict[str, bytes], number: int) -> tuple[str, bytes]:
    """File `number`: what kind it is, and its bytes."""
    half = number // 2
    if number % 2 == 0:
        chance = random.Random(f"damaged {number}")
        return "damaged", damaged.damage(data, chance, [data])
    if half < len(others):
        name = list(others)[half]
        return f"crafted: {name}", others[name]
    return resigned(data, number)


def serve(path: str, start: int, stop: int, share: int) -> None:
    """In the process of its own: limits first, then the models."""
    import resource

    import numpy as np
    import torch
    from PIL import Image

    from endocil.errors import EndocilError
    from endocil.model.model import Model
    from endocil.release import learn as learning

    learning.speed = lambda *_, **__: 1.0  # measuring the speed takes longer than all the rest
    torch.set_num_threads(1)
    data = Path(path).read_bytes()
    pictures = [np.full((40, 30, 3), shade, np.uint8) for shade in (0, 200)]
    new = Path("new", "another class")  # names that a hostile pattern would never be done with
    new.mkdir(parents=True)
    for number, shade in enumerate((0, 80, 160, 240)):
        Image.fromarray(np.full((40, 30, 3), shade, np.uint8)).save(new / f"{'a' * 40}{number}!.png")
    Model.load(path).predict(pictures, reasons=1)  # what loads lazily is loaded now
    _other_commands(Path(path))
    others = crafted(data)
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a hang in C code ends the process too
    results, further, loaded = damaged.Results(), damaged.Results(), list[str]()
    place = Path("model.endocil")
    for number in range(start, stop):
        kind, content = case(data, others, number)
        place.write_bytes(content)

        def attempt() -> None:
            found = Model.load(place).predict(pictures, reasons=1)
            assert np.isfinite(found.probabilities).all()
            assert len(found) == 2

        signal.alarm(SECONDS)
        if results.of(number, kind, attempt, EndocilError):
            loaded.append(kind)
            if kind.startswith("crafted") or len(loaded) % share == 0:
                signal.alarm(SECONDS)
                further.of(number, f"{kind}, other commands", lambda: _other_commands(place), EndocilError)
        _look_around(number, kind, results.failures)
    told = {**results.summary(), "loaded": loaded, "reasons": results.reasons.most_common(40)}
    told["failures"] += further.failures
    told |= {"learned": further.good, "not_learned": further.reasons.most_common()}
    print(json.dumps(told))


def _other_commands(place: Path) -> None:
    """What one does with a model besides predicting; what they write is removed."""
    from endocil.model.file import read_model_file, write_model_file
    from endocil.model.kept_images import forget, write_list, write_sheet
    from endocil.release.learn import learn

    content = read_model_file(place)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        write_list(out / "list.csv", content)
        write_sheet(out / "sheet.jpg", content)
        less = forget(content, images=[content.exemplars.provenance[0].image], allow_empty=True)
        assert len(less.content.exemplars) < len(content.exemplars)
        write_model_file(out / "less.endocil", less.content)
        assert read_model_file(out / "less.endocil").classes == content.classes
        changes = ["train.epochs=1", "train.milestones=[]", "train.compile=false", "run.threads=1"]
        learn(place, "new", out / "more.endocil", changes=changes, validation=0.25)
        assert read_model_file(out / "more.endocil").classes == (*content.classes, "another class")


def _look_around(number: int, kind: str, failures: list[str]) -> None:
    """Nothing was written beside the model or into the folder of temporary files, and nothing imported."""
    left = sorted({*os.listdir(), *os.listdir(tempfile.gettempdir())} - {"model.endocil", "new", "tmp"})
    if left or PLANTED in sys.modules:
        failures.append(f"{number} ({kind}): left {left}, imported {PLANTED in sys.modules}")


def run(path: Path, start: int, stop: int, share: int = SHARE) -> dict[str, Any]:
    """What became of these models; a process that died is a failure."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as modules:
        temporary = Path(folder, "tmp")
        temporary.mkdir()
        Path(modules, f"{PLANTED}.py").write_text("Thing = object\n")
        here = [str(Path(__file__).parent), str(Path(__file__).parents[1]), modules]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*here, *filter(None, sys.path)]),
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
            "TMPDIR": str(temporary),
            "ENDOCIL_CACHE": str(Path(modules, "cache")),
            "TORCHINDUCTOR_CACHE_DIR": str(Path(modules, "inductor")),  # made by importing the optimisers
        }
        code = f"import hostile; hostile.serve({str(path.resolve())!r}, {start}, {stop}, {share})"
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True, check=False
        )
    if done.returncode:
        ended = f"{start} to {stop}: the process ended with {done.returncode}: {done.stderr[-1500:]}"
        none: dict[str, Any] = {"loaded": [], "reasons": [], "learned": 0, "not_learned": []}
        return {"good": 0, "refused": 0, "failures": [ended], **none}
    found: dict[str, Any] = json.loads(done.stdout)
    return found
