"""Every folder once, and those that cannot be listed told apart from empty ones."""

import errno
import os
from pathlib import Path
from typing import Any

import layouts
import pytest

from endocil.data.inputs import inputs_of
from endocil.data.readers import read_many
from endocil.datasets.folder import load
from endocil.datasets.public.class_folders import gastrovision
from endocil.errors import EndocilError
from endocil.io.walk import walk

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links need rights there")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return layouts.write(tmp_path / "data", ["polyp/0.png", "polyp/1.png", "ulcer/0.png", "ulcer/1.png"])


def test_a_folder_that_cannot_be_listed_is_named_at_the_end_and_the_others_are_walked(data: Path) -> None:
    unlisted = layouts.write_unlisted(data / "polyp")
    (data / "polyp" / "gone.jpg").symlink_to("nowhere")  # a picture, by its name
    (data / "polyp" / ".gone").symlink_to("nowhere")
    places = list(walk(data))
    lost = [place for place in places if place.unreadable]
    assert ["/".join(place.parts) for place in lost] == [f"polyp/{name}" for name in unlisted]
    assert [(place.folders, place.files) for place in lost] == [((), ())] * 3
    assert places[-3:] == lost
    files = {place.parts: place.files for place in places if place.files}
    assert files == {("polyp",): (".gone", "0.png", "1.png", "gone.jpg"), ("ulcer",): ("0.png", "1.png")}


@pytest.mark.parametrize(("number", "goes_on"), [(errno.EACCES, True), (errno.EPERM, True), (errno.EIO, False)])
def test_a_folder_without_rights_is_unreadable_and_a_failing_disk_ends_the_walk(
    data: Path, monkeypatch: pytest.MonkeyPatch, number: int, goes_on: bool
) -> None:
    def scandir(path: Any) -> Any:
        if str(path).endswith("ulcer"):
            raise OSError(number, os.strerror(number), os.fspath(path))
        return real(path)

    real = os.scandir
    monkeypatch.setattr(os, "scandir", scandir)
    if goes_on:
        assert [place.parts for place in walk(data) if place.unreadable] == [("ulcer",)]
    else:
        with pytest.raises(EndocilError, match=r"cannot list the folder .*ulcer: Input/output error"):
            list(walk(data))
    with pytest.raises(EndocilError, match=f"cannot list the folder .*ulcer: {os.strerror(number)}"):
        list(walk(data / "ulcer"))  # the top itself


def test_such_a_folder_is_one_unreadable_image_of_a_folder_of_classes_and_of_what_is_predicted(data: Path) -> None:
    names = [f"polyp/{name}/" for name in layouts.write_unlisted(data / "polyp")]
    table = load(root=str(data))
    assert sorted(table.ids) == sorted([*names, "polyp/0.png", "polyp/1.png", "ulcer/0.png", "ulcer/1.png"])
    found = inputs_of(data, crop_frame=False)
    assert sorted(found.names) == sorted(table.ids)
    for reader, ids, of in ((table.reader, table.ids, table.ids), (found.reader, found.ids, found.names)):
        _, unreadable = read_many(reader, ids, 8)
        called = dict(zip(ids, of, strict=True))
        reasons = {Path(called[name]).name[:9]: reason for name, reason in unreadable}
        assert reasons.keys() == {"circle", "gone", "n" * 9}
        assert "symbolic links" in reasons["circle"]
        assert "No such file" in reasons["gone"]
        assert "too long" in reasons["n" * 9]


def test_such_a_folder_in_a_class_of_a_public_data_set_is_an_image_of_the_class(tmp_path: Path) -> None:
    top = layouts.write_gastrovision(tmp_path / "data")
    unlisted = layouts.write_unlisted(top / "Gastrovision" / "Ulcer")
    table = gastrovision(root=str(top))
    assert set(table.ids) - set(layouts.GASTROVISION_IDS) == {f"Ulcer/{name}/" for name in unlisted}
    assert {table.classes[label] for name, label in zip(table.ids, table.labels, strict=True) if name[-1] == "/"} == {
        "Ulcer"
    }
