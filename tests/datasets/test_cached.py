"""The cache: what lies there, and that clearing it removes all that is ours and nothing else."""

from pathlib import Path

import layouts
import pytest
from PIL import Image

from endocil.cli.data import cache
from endocil.data.cache import UnfinishedBuild, contents, load_images
from endocil.data.fingerprints import fingerprints
from endocil.datasets.folder import load
from endocil.io.archives import extract
from endocil.io.files import temporary_beside


def test_clearing_removes_what_the_package_wrote_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ENDOCIL_CACHE", str(folder))
    cache()
    assert "total: 0 bytes" in capsys.readouterr().out
    (tmp_path / "data/a").mkdir(parents=True)
    Image.new("RGB", (9, 9), "red").save(tmp_path / "data/a/1.png")
    table = load(root=str(tmp_path / "data"))
    load_images(table, 8)
    fingerprints(table)
    with UnfinishedBuild(folder / f"{'a' * 64}.npy", (4, 8, 8, 3), resumable=True).appending():
        pass
    place = extract(layouts.zip_files(tmp_path / "x.zip", {"a/1.jpg": b"image"})).folder
    temporary_beside(place).mkdir()
    kinds = {kept.kind for kept in contents(folder)}
    assert kinds == {
        "decoded images",
        "fingerprints (audit)",
        "extracted archives",
        "unfinished or left by a killed process",
    }
    mine = [folder / "notes.txt", folder / "archives" / "holiday" / "1.jpg", folder / "ab.npy"]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"mine")
    (folder / f"{'b' * 64}.npy").symlink_to(tmp_path / "data/a/1.png")
    cache()
    told = capsys.readouterr().out
    size = sum(kept.size for kept in contents(folder))
    assert str(folder) in told
    assert place.name in told
    assert f"total: {size:,} bytes" in told
    cache(clear=True)
    assert f"{size:,} bytes freed" in capsys.readouterr().out
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == sorted([*mine, folder / f"{'b' * 64}.npy"])
    assert (tmp_path / "data/a/1.png").exists()
    load_images(table, 8)  # it is made again
