"""Files are whole or not there."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from endocil.errors import DataError, EndocilError, SettingsError
from endocil.io.files import read_csv, refuse_existing, replacing, write_atomically, write_csv, write_json


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
        with replacing(tmp_path / "file", 10) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EndocilError, match=r"cannot write .*may be written to"):
        write_atomically(tmp_path / "file" / "below", "x")


def test_a_written_file_has_the_usual_permissions(tmp_path: Path) -> None:
    write_atomically(tmp_path / "ours", "x")
    (tmp_path / "plain").write_text("x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


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
