"""The file of a model: the same content gives the same bytes, and no other bytes are accepted."""

from pathlib import Path

import pytest
from hostile import MANIFEST, members_of, sign, signed

from endocil.errors import EndocilError
from endocil.model.file import read_archive, write_archive

FILES = {"manifest.json": b"{}", "weights.safetensors": b"12345", "exemplars/000000.png": b"x"}


def test_what_was_written_comes_back_under_the_same_digest(tmp_path: Path) -> None:
    digest = write_archive(tmp_path / "one", FILES)
    assert read_archive(tmp_path / "one") == (FILES, digest)
    assert write_archive(tmp_path / "two", FILES) == digest
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_other_content_has_another_digest(tmp_path: Path) -> None:
    other = {**FILES, "weights.safetensors": b"12346"}
    assert write_archive(tmp_path / "one", FILES) != write_archive(tmp_path / "two", other)


def test_every_single_wrong_bit_and_every_cut_is_seen(tmp_path: Path) -> None:
    write_archive(tmp_path / "sound", FILES)
    data = (tmp_path / "sound").read_bytes()
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << (place % 8)
        for wrong in (bytes(flipped), data[:place]):
            (tmp_path / "wrong").write_bytes(wrong)
            with pytest.raises(EndocilError, match=r"is damaged|is not a model file"):
                read_archive(tmp_path / "wrong")


def test_a_file_that_is_written_over_is_the_old_one_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    write_archive(tmp_path / "one", FILES)
    before = (tmp_path / "one").read_bytes()
    monkeypatch.setattr("os.replace", full)
    with pytest.raises(EndocilError, match="No space left"):
        write_archive(tmp_path / "one", {"manifest.json": b"[]"})
    assert (tmp_path / "one").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("../evil", "'../evil', which no model has"), ("a.pkl", "'a.pkl'"), ("exemplars/1.png", "which no model")],
)
def test_other_names_are_refused(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "strange").write_bytes(signed([*FILES.items(), (name, b"")]))
    with pytest.raises(EndocilError, match=reason):
        read_archive(tmp_path / "strange")


def test_data_before_the_archive_is_part_of_what_is_signed(tmp_path: Path) -> None:
    write_archive(tmp_path / "one", FILES)
    data = (tmp_path / "one").read_bytes()
    (tmp_path / "longer").write_bytes(b"#!/bin/sh\n" + data)
    with pytest.raises(EndocilError, match="damaged"):
        read_archive(tmp_path / "longer")
    (tmp_path / "longer").write_bytes(sign(b"#!/bin/sh\n" + data))
    assert read_archive(tmp_path / "longer")[0] == FILES


@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "text"])
def test_what_is_no_model_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "thing"
    if kind == "folder":
        path.mkdir()
    elif kind != "missing":
        path.write_text("" if kind == "empty" else "some text " * 100)
    with pytest.raises(EndocilError) as refused:
        read_archive(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_members_of_a_model_are_not_compressed(tiny_model: Path) -> None:
    data = tiny_model.read_bytes()
    members = dict(members_of(data))
    assert members[MANIFEST] in data
