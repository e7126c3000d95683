"""Archives come out once, whole, inside their folder; what is hostile or damaged ends in one line."""

import gzip
import io
import os
import random
import struct
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import layouts
import pytest

from endocil.errors import EndocilError
from endocil.io import archives
from endocil.io.archives import RECORD, Limits, extract
from endocil.io.files import filling_folder, lock, temporary_beside

JPG = layouts.PICTURES[".jpg"]


def files_below(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() and path.name != RECORD
    )


def tar(path: Path, members: list[tarfile.TarInfo | str], mode: Literal["w", "w:gz"] = "w:gz") -> Path:
    with tarfile.open(path, mode) as file:
        for member in members:
            if isinstance(member, str):
                layouts.add_to_tar(file, member, JPG)
            else:
                file.addfile(member, io.BytesIO(JPG))
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def test_only_images_and_labels_come_out_and_the_rest_is_counted(tmp_path: Path) -> None:
    names = [
        "a/1.jpg",
        "a/2.PNG",
        "list.csv",
        "t.xlsx",
        "m.json",
        "film.avi",
        "README",
        "a/.DS_Store",
        "__MACOSX/a/1.jpg",
    ]
    archive = layouts.zip_files(tmp_path / "x.zip", dict.fromkeys(names, JPG))
    extracted = extract(archive)
    assert files_below(extracted.folder) == ["a/1.jpg", "a/2.PNG", "list.csv", "m.json", "t.xlsx"]
    assert extracted.files == 5
    assert extracted.left_out == {".avi": 1, "without ending": 1, "hidden": 2}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_tar_comes_out_alike(tmp_path: Path, mode: Literal["w", "w:gz"]) -> None:
    archive = tar(tmp_path / "x.tar.gz", ["./a/1.jpg", "a/film.avi", "a/._1.jpg"], mode)
    assert files_below(extract(archive).folder) == ["a/1.jpg"]


def test_archives_in_archives_come_out_in_folders_of_their_names(tmp_path: Path) -> None:
    inner = tar(tmp_path / "polyp.tar.gz", ["1.jpg"]).read_bytes()
    middle = layouts.zip_files(tmp_path / "m.zip", {"images/polyp.tar.gz": inner}).read_bytes()
    archive = layouts.zip_files(tmp_path / "outer.zip", {"outer.zip": middle, "2.jpg": JPG})
    extracted = extract(archive, tmp_path / "out")
    assert files_below(extracted.folder) == ["2.jpg", "outer/images/polyp/1.jpg"]
    assert extracted.files == 2


def test_a_second_call_takes_what_the_first_has_extracted(tmp_path: Path) -> None:
    archive = layouts.zip_files(tmp_path / "x.zip", {"a/1.jpg": JPG, "b.txt": b""})
    first = extract(archive)
    stamp = (first.folder / "a/1.jpg").stat().st_mtime_ns
    assert extract(archive) == first
    assert (first.folder / "a/1.jpg").stat().st_mtime_ns == stamp
    (first.folder / "a/1.jpg").unlink()
    assert files_below(extract(archive).folder) == ["a/1.jpg"]  # a file was lost: extracted again
    layouts.zip_files(archive, {"a/1.jpg": JPG, "a/2.jpg": JPG})
    assert files_below(extract(archive).folder) == ["a/1.jpg", "a/2.jpg"]  # another archive of the same name


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    archive = layouts.zip_files(tmp_path / "x.zip", {"a/1.jpg": JPG})
    layouts.write(tmp_path / "out", ["mine.jpg"])
    with pytest.raises(EndocilError, match="is not empty"):
        extract(archive, tmp_path / "out")
    assert files_below(tmp_path / "out") == ["mine.jpg"]


def test_progress_goes_up_to_the_size_of_the_archive(tmp_path: Path) -> None:
    inner = layouts.zip_files(tmp_path / "i.zip", {f"{i}.jpg": JPG for i in range(5)}).read_bytes()
    packed = tar(tmp_path / "t.tar.gz", [f"{i}.jpg" for i in range(5)])
    for archive in (layouts.zip_files(tmp_path / "x.zip", {"i.zip": inner, "2.jpg": JPG}), packed):
        told: list[tuple[int, int]] = []

        def progress(done: int, total: int, told: list[tuple[int, int]] = told) -> None:
            told.append((done, total))

        extract(archive, progress=progress)
        assert told == sorted(told)
        assert told[-1] == (archive.stat().st_size, archive.stat().st_size)
        assert len(told) >= 5


UNSAFE = [
    "../out.jpg",
    "a/../../out.jpg",
    "/etc/out.jpg",
    "..\\out.jpg",
    "a\\..\\..\\out.jpg",
    "C:\\out.jpg",
    "c:out.jpg",
    "\\\\host\\out.jpg",
]


@pytest.mark.parametrize("name", [*UNSAFE, "../harmless.txt"])
@pytest.mark.parametrize("pack", ["zip", "tar", "inside"])
def test_a_name_that_leads_out_ends_the_extraction(tmp_path: Path, name: str, pack: str) -> None:
    archive = tmp_path / "in" / "x.zip"
    layouts.zip_files(archive, {"good.jpg": JPG, name: JPG})
    if pack == "tar":
        tar(archive, ["good.jpg", name])
    elif pack == "inside":
        layouts.zip_files(archive, {"a/b/c.zip": archive.read_bytes()})
    with pytest.raises(
        EndocilError, match=r"x\.zip holds the name .*, which leads out of the folder; .*do not extract it"
    ):
        extract(archive, tmp_path / "in" / "target")
    assert files_below(tmp_path) == ["in/x.zip"]
    assert os.listdir(tmp_path / "in") == ["x.zip"]


def test_backslashes_are_folders_where_they_lead_nowhere(tmp_path: Path) -> None:
    archive = layouts.zip_files(tmp_path / "x.zip", {"a\\b\\1.jpg": JPG})
    assert files_below(extract(archive).folder) == ["a/b/1.jpg"]


def test_links_and_devices_are_left_out(tmp_path: Path) -> None:
    kinds = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
    members = [special(f"{i}.jpg", kind, "/etc/passwd") for i, kind in enumerate(kinds)]
    folder_link = special("a", tarfile.SYMTYPE, str(tmp_path))
    extracted = extract(tar(tmp_path / "x.tar", [*members, folder_link, "a/9.jpg"], "w"))
    assert files_below(extracted.folder) == ["a/9.jpg"]  # in a real folder a
    assert extracted.left_out == {"link or device": 6}
    link = zipfile.ZipInfo("1.jpg")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        file.writestr(link, "/etc/passwd")
    assert extract(tmp_path / "x.zip").left_out == {"link or device": 1}


def test_a_name_that_is_there_twice_is_taken_once(tmp_path: Path) -> None:
    extracted = extract(tar(tmp_path / "x.tar", ["a.jpg", "a.jpg", "a.jpg/b.jpg"], "w"))
    assert files_below(extracted.folder) == ["a.jpg"]
    assert extracted.left_out == {"repeated name": 2}


def bomb(path: Path) -> Path:
    return layouts.zip_files(path, {"a.jpg": bytes(300_000)})


def tar_bomb(path: Path) -> Path:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        layouts.add_to_tar(file, "unwanted.bin", bytes(3_000_000))  # also what is only passed over counts
    path.write_bytes(gzip.compress(buffer.getvalue()))
    return path


def many(path: Path) -> Path:
    return layouts.zip_files(path, {f"{i}.txt": b"" for i in range(30)})


def deep(path: Path) -> Path:
    data = JPG
    for _ in range(5):
        data = layouts.zip_files(path, {"x.zip" if data != JPG else "a.jpg": data}).read_bytes()
    return path


def encrypted(path: Path) -> Path:
    data = bytearray(layouts.zip_files(path, {"a.jpg": JPG}).read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        struct.pack_into("<H", data, data.index(mark) + flags, 1)
    path.write_bytes(data)
    return path


def packed_by_lzma(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        file.writestr("a.jpg", JPG)
    return path


def wrong_checksum(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.jpg", JPG)
    path.write_bytes(path.read_bytes().replace(JPG[-20:], JPG[-20:][::-1]))
    return path


def cut_tar(path: Path) -> Path:
    whole = tar(path, ["a.jpg", "b.jpg"], "w").read_bytes()
    path.write_bytes(whole[:1536])  # between two members: tarfile would take it for the end
    return path


def broken_tar(path: Path) -> Path:
    whole = bytearray(tar(path, ["a.jpg", "b.jpg"], "w").read_bytes())
    start = whole.index(b"b.jpg")
    whole[start : start + 512] = b"x" * 512
    path.write_bytes(whole)
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (bomb, "holds a file of 300,000 bytes in .* more than 10 times"),
        (tar_bomb, "holds a stream of .* more than 10 times"),
        (many, "holds more than the 20 files"),
        (deep, "holds archives nested more than 3 deep"),
        (encrypted, "is encrypted"),
        (packed_by_lzma, "is compressed by method 14"),
        (wrong_checksum, r"is damaged \(Bad CRC-32"),
        (cut_tar, "is damaged"),
        (broken_tar, "is damaged"),
        (lambda path: layouts.write(path.parent, ["x.zip"]) / "x.zip", "is not a zip, tar or tar.gz archive"),
        (lambda path: layouts.zip_files(path, {"inner.zip": b"zero"}), "is not a zip, tar or tar.gz archive"),
    ],
)
def test_what_is_hostile_or_damaged_is_refused(tmp_path: Path, make: Callable[[Path], Path], message: str) -> None:
    (tmp_path / "in").mkdir()
    archive = make(tmp_path / "in" / "x.zip")
    limits = Limits(files=20, ratio=10, any_ratio=100_000)
    with pytest.raises(EndocilError, match=message) as caught:
        extract(archive, tmp_path / "in" / "target", limits=limits)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path / "in") == ["x.zip"]


def test_the_sum_of_all_files_is_limited(tmp_path: Path) -> None:
    archive = tar(tmp_path / "x.tar", [f"{i}.jpg" for i in range(9)], "w")
    with pytest.raises(EndocilError, match="holds more than the 2,000 bytes"):
        extract(archive, limits=Limits(total=2_000))


def test_disk_space_is_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = layouts.zip_files(tmp_path / "x.zip", {"a.jpg": JPG})
    monkeypatch.setattr(archives, "free_bytes", lambda folder: 3)
    with pytest.raises(EndocilError, match=r"needs \d+ bytes, but 3 are free in .*; free some space, or set ENDOCIL"):
        extract(archive)


def test_what_a_killed_extraction_left_is_removed_by_the_next_one_and_nothing_else(tmp_path: Path) -> None:
    archive = layouts.zip_files(tmp_path / "x.zip", {"a/1.jpg": JPG})
    target = tmp_path / "target"
    left = temporary_beside(target)
    with filling_folder(tmp_path / "another") as other:  # it is being written
        for folder in (left, other, tmp_path / ".target.mine.tmp"):
            (folder / "a").mkdir(parents=True)
            (folder / "a" / "1.jpg").write_bytes(JPG)
        extract(archive, target)
        assert not left.exists()
        assert other.exists()
    assert (tmp_path / ".target.mine.tmp").exists()


@pytest.mark.skipif(os.name == "nt", reason="no locks of this kind there")
def test_a_second_process_waits_for_the_first_and_takes_its_folder(tmp_path: Path) -> None:
    archive = layouts.zip_files(tmp_path / "x.zip", {"a/1.jpg": JPG})
    done: list[Path] = []
    second = threading.Thread(target=lambda: done.append(extract(archive, tmp_path / "target").folder))
    with open(archive, "rb") as file:
        assert lock(file) == "held"
        second.start()
        second.join(0.3)
        assert done == []
    second.join(20)
    assert done == [tmp_path / "target"]


@pytest.mark.skipif(os.name == "nt", reason="no pipes in folders there")
def test_a_pipe_is_no_archive(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.zip")
    with pytest.raises(EndocilError, match=r"cannot read the archive .*x\.zip: .*not a file"):
        extract(tmp_path / "x.zip")


@pytest.mark.skipif(os.name == "nt", reason="other limits there")
def test_a_name_that_is_too_long_is_said_to_be(tmp_path: Path) -> None:
    archive = layouts.zip_files(tmp_path / "x.zip", {"a" * 300 + ".jpg": JPG})
    with pytest.raises(EndocilError, match=r"a name of 304 letters, .* too long for this disk; .*shortens names"):
        extract(archive, tmp_path / "target")


def test_an_archive_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EndocilError, match=r"cannot read the archive .*x\.zip: No such file"):
        extract(tmp_path / "x.zip")


def test_archives_damaged_at_random_end_in_one_line_or_inside_the_folder(tmp_path: Path) -> None:
    chance = random.Random(7)
    inner = tar(tmp_path / "i.tar.gz", ["1.jpg"]).read_bytes()
    seeds = [
        layouts.zip_files(tmp_path / "a.zip", {"a/1.jpg": JPG, "b.csv": b"x,y", "c.tar.gz": inner}).read_bytes(),
        tar(tmp_path / "b.tar.gz", ["a/1.jpg", "b/2.jpg"]).read_bytes(),
        tar(tmp_path / "c.tar", ["a/1.jpg", special("l", tarfile.SYMTYPE, "../.."), "l/2.jpg"], "w").read_bytes()[
            :4096
        ],
    ]
    work = tmp_path / "work"
    work.mkdir()
    for turn in range(150):
        data = bytearray(seeds[turn % 3])
        for _ in range(chance.choice((1, 2, 8))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        archive = work / "x.zip"
        archive.write_bytes(data[: chance.choice((len(data), chance.randrange(len(data) + 1)))])
        try:
            extract(archive, work / f"out-{turn}")
        except EndocilError as error:
            message = str(error)
            assert "\n" not in message
        assert set(os.listdir(work)) <= {"x.zip", *(f"out-{i}" for i in range(turn + 1))}
