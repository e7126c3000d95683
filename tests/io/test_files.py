"""Files are whole or not there."""

import csv
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from endocil.errors import DataError, EndocilError, SettingsError
from endocil.io import files
from endocil.io.files import (
    filling_folder,
    lock,
    locked,
    make_private_folder,
    read_csv,
    refuse_existing,
    replacing,
    temporary_beside,
    write_atomically,
    write_csv,
    write_json,
)


def test_a_written_file_replaces_the_old_one_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    write_atomically(path, "old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["file.txt"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_keeps_the_old_file_and_names_path_bytes_and_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "file.txt"
    write_atomically(path, "old")

    def no_space(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, step, no_space)
    with pytest.raises(EndocilError, match="No space left") as error:
        write_atomically(path, "x" * 12345)
    assert str(path) in str(error.value)
    assert "12,345 bytes" in str(error.value)
    assert "bytes are free" in str(error.value)
    assert "free some space" in str(error.value)
    assert os.listdir(tmp_path) == ["file.txt"]
    assert path.read_text() == "old"


def test_an_interruption_while_writing_removes_the_temporary_file(tmp_path: Path) -> None:
    def interrupted() -> None:
        with replacing(tmp_path / "file", 10) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EndocilError, match=r"cannot write .*may be written to"):
        write_atomically(tmp_path / "file" / "below", "x")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o777], ids=oct)
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_umask")
def test_a_file_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    folder = tmp_path / "ours"
    make_private_folder(folder)
    write_atomically(folder / "model", "x")
    write_csv(folder / "t.csv", ("path",), [("a",)])
    with locked(folder, ""):
        pass
    with filling_folder(folder / "images") as temporary:
        assert mode(temporary) & 0o077 == 0
    assert mode(folder) == 0o700
    assert {mode(folder / name) for name in ("model", "t.csv", ".lock")} == {0o600}


def test_what_is_made_to_be_shown_has_the_usual_permissions(tmp_path: Path) -> None:
    write_atomically(tmp_path / "ours", "x", public=True)
    (tmp_path / "plain").write_text("x")
    assert mode(tmp_path / "ours") == mode(tmp_path / "plain")


def test_a_folder_that_its_owner_shares_with_a_group_stays_shared(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    write_atomically(tmp_path / "pixels", "x")
    make_private_folder(tmp_path / "below")
    assert mode(tmp_path / "pixels") == 0o660
    assert mode(tmp_path / "below") == 0o2770


def test_who_waits_for_a_lock_gets_it_when_it_is_free_and_stops_when_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, gate = tmp_path / "lock", iter([False] * 3 + [True])
    with open(path, "ab") as held, open(path, "ab") as waiting:
        assert lock(held) == "held"
        assert lock(waiting, wait=False) == "taken"
        monkeypatch.setattr(files, "is_requested", lambda: next(gate))
        with pytest.raises(KeyboardInterrupt):
            lock(waiting)
        monkeypatch.setattr(files, "is_requested", held.close)
        assert lock(waiting) == "held"


@pytest.mark.parametrize("there", [True, False])
def test_no_link_is_followed_when_a_file_is_locked_or_appended_to(tmp_path: Path, there: bool) -> None:
    target = tmp_path / "elsewhere"
    if there:
        target.write_text("theirs")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".lock").symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"), locked(folder, ""):
        pass
    (folder / "file").symlink_to(target)
    write_atomically(folder / "file", "ours")  # the link is replaced, not followed
    assert not (folder / "file").is_symlink()
    assert target.exists() == there
    assert not there or target.read_text() == "theirs"


def test_what_a_killed_process_left_is_removed_by_the_next_write_there(tmp_path: Path) -> None:
    left = [temporary_beside(tmp_path / name) for name in ("model.endocil", "published")]
    left[0].write_text("half a model with pictures")
    left[1].mkdir()
    (left[1] / "deep").mkdir()
    (tmp_path / ".other.tmp").write_text("not ours")
    write_atomically(tmp_path / "another", "x")
    assert sorted(os.listdir(tmp_path)) == [".other.tmp", "another"]


def test_what_another_process_is_writing_is_not_removed(tmp_path: Path) -> None:
    with replacing(tmp_path / "one", 4) as file, filling_folder(tmp_path / "two") as folder:
        write_atomically(tmp_path / "three", "x")
        file.write(b"kept")
        (folder / "file").write_text("kept")
    assert (tmp_path / "one").read_text() == (tmp_path / "two" / "file").read_text() == "kept"
    assert sorted(os.listdir(tmp_path)) == ["one", "three", "two"]


FORMULAS = ("=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "'=1", "''@x")


def test_no_cell_is_a_formula_to_a_spreadsheet_and_each_comes_back(tmp_path: Path) -> None:
    plain = ("'quoted'", "-0.5", "+1e-7", "-3", "polyp", "")
    rows = [(text, "x") for text in (*FORMULAS, *plain)]
    write_csv(tmp_path / "t.csv", ("=path", "group"), rows)
    with open(tmp_path / "t.csv", newline="") as file:
        header, *cells = csv.reader(file)
    assert header[0] == "'=path"
    assert [cell[0] for cell in cells] == [*(f"'{text}" for text in FORMULAS), *plain]
    assert [tuple(row.values()) for row in read_csv(tmp_path / "t.csv")] == rows
    assert "=path" in read_csv(tmp_path / "t.csv")[0]


def test_csv_comes_back_as_it_went_in(tmp_path: Path) -> None:
    rows = [("a,b", 'say "x"'), ("two\nlines", "ü"), (b"caf\xe9".decode(errors="surrogateescape"), "")]
    write_csv(tmp_path / "t.csv", ("path", "group"), rows)
    assert [tuple(row.values()) for row in read_csv(tmp_path / "t.csv")] == rows


def test_csv_from_a_spreadsheet_keeps_its_first_column_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("\ufeffpath,group\r\na,1\r\n".encode())
    assert read_csv(tmp_path / "t.csv") == [{"path": "a", "group": "1"}]


@pytest.mark.parametrize("line", ["a", "a,1,2"])
def test_a_csv_line_with_the_wrong_number_of_fields_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "t.csv").write_text(f"path,group\nx,1\n{line}\n")
    with pytest.raises(EndocilError, match=r"line 3: expected the fields path,group"):
        read_csv(tmp_path / "t.csv")


def test_a_csv_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EndocilError, match=r"cannot read .*none\.csv: No such file"):
        read_csv(tmp_path / "none.csv")


def test_json_refuses_numbers_that_json_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        write_json(tmp_path / "x.json", {"f1": float("nan")})
    assert os.listdir(tmp_path) == []


def test_names_with_any_control_character_come_back_from_a_csv_file(tmp_path: Path) -> None:
    names = [f"a{chr(code)}b" for code in (*range(1, 32), 0x7F, 0x85, 0x2028)]
    names += ["\r", "\r\n", "a\r", '"\r,', "plain"]
    write_csv(tmp_path / "x.csv", ("name", "other"), [(name, "x") for name in names])
    assert [row["name"] for row in read_csv(tmp_path / "x.csv")] == names
    write_csv(tmp_path / "y.csv", ("name",), [("a\nb",), ("c",)])
    assert (tmp_path / "y.csv").read_bytes() == b'name\n"a\nb"\nc\n'
    with pytest.raises(DataError, match="the character NUL"):
        write_csv(tmp_path / "z.csv", ("name",), [("a\0b",)])


def test_an_existing_file_is_overwritten_only_by_force(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    refuse_existing(file)
    file.touch()
    refuse_existing(file, force=True)
    with pytest.raises(SettingsError, match=r"choose another file with -o, or overwrite it with --force"):
        refuse_existing(file, force=False)
    with pytest.raises(SettingsError, match=r"choose another file with -o$"):
        refuse_existing(file)
    with pytest.raises(SettingsError, match="is a folder"):
        refuse_existing(tmp_path, force=True)
