"""endocil data audit, as it is typed."""

import json
from pathlib import Path

import layouts
import pytest
import tomli_w
import typer
from scenes import COPIES, originals, write_folder
from typer.testing import CliRunner

from endocil.cli.data import audit
from endocil.datasets.folder import load
from endocil.errors import EndocilError

app = typer.Typer()
app.command()(audit)


def run(*arguments: object, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["--force", *map(str, arguments)], catch_exceptions=True)
    if isinstance(result.exception, EndocilError):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two classes of ten; every picture of the second is a copy of one of the first. And two rare pictures."""
    pictures = {}
    for number, picture in enumerate(originals(10)):
        pictures[f"polyp/{number}.png"] = picture
        pictures[f"ulcer/{number}.jpg"] = COPIES["brighter"](picture)
    pictures |= {f"rare/{number}.png": picture for number, picture in enumerate(originals(30)[28:])}
    return write_folder(tmp_path / "data", pictures)


@pytest.fixture
def settings(data: Path, tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    values = {"data": {"name": "folder", "root": str(data)}, "scenario": {"minimum": 5, "tasks": 2}}
    path.write_text(tomli_w.dumps(values))
    return path


def test_settings_give_the_split_of_a_run_a_page_a_record_and_groups_for_data_groups(
    settings: Path, data: Path, tmp_path: Path
) -> None:
    page, groups = tmp_path / "out" / "audit.html", tmp_path / "groups.csv"
    told = run(settings, "-o", page, "--groups", groups)
    record = json.loads(page.with_suffix(".json").read_text())
    assert "20 images in 2 classes" in told
    assert record["leaks"]["test_images"] == 4
    assert record["near"]["groups"] == 10
    assert "<img" in page.read_text()
    table = load(root=str(data), groups=str(groups))  # all images have a line, those of the rare class too
    by_id = dict(zip(table.ids, table.groups, strict=True))
    assert all(by_id[f"ulcer/{n}.jpg"] == by_id[f"polyp/{n}.png"] == f"polyp/{n}.png" for n in range(10))


def test_strict_fails_where_test_images_are_known_and_only_there(settings: Path, tmp_path: Path) -> None:
    page = tmp_path / "audit.html"
    run(settings, "-o", page, "--strict", status=2)
    assert page.exists()
    run(settings, "-o", page, "--strict", "--set", 'scenario.leave_out=["ulcer"]', "--set", "scenario.tasks=1")


def test_a_folder_has_no_split_and_pictures_can_be_left_out(data: Path, tmp_path: Path) -> None:
    (data / "polyp" / "damaged.png").write_bytes(b"no picture")
    page = tmp_path / "audit.html"
    told = run(data, "-o", page, "--no-pictures", "--strict")
    assert "22 images in 3 classes; 1 cannot be read" in told
    assert "no split" in told
    assert "<img" not in page.read_text()
    record = json.loads(page.with_suffix(".json").read_text())
    assert record["unreadable"][0]["image"] == "polyp/damaged.png"


def test_a_flat_folder_is_one_class_and_a_wrapped_one_has_the_classes_inside(tmp_path: Path) -> None:
    page = tmp_path / "audit.html"
    pictures = {f"{number}.png": picture for number, picture in enumerate(originals(4))}
    told = run(write_folder(tmp_path / "flat", pictures), "-o", page)
    assert "4 images in 1 class;" in told
    assert "All images are of one class, flat;" in told
    assert "All images are of one class" in page.read_text()
    wrapped = {f"set/{'polyp' if name < '2' else 'ulcer'}/{name}": one for name, one in pictures.items()}
    told = run(write_folder(tmp_path / "wrapped", wrapped), "-o", page)
    assert "4 images in 2 classes" in told
    assert "one class" not in told
    told = run(tmp_path / "wrapped", "-o", page, "--set", "data.class_from=first")
    assert "4 images in 1 class;" in told


def test_the_help_names_the_setting_that_takes_the_groups() -> None:
    assert "scenario.groups" in " ".join(run("--help").split())


def test_images_none_of_which_can_be_read_are_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "data" / "polyp").mkdir(parents=True)
    (tmp_path / "data" / "polyp" / "1.png").write_bytes(b"")
    with pytest.raises(EndocilError, match=r"no image can be read, of 1; polyp/1\.png: the file is empty"):
        run(tmp_path / "data", "-o", tmp_path / "audit.html")


def test_links_that_lead_nowhere_are_listed_and_the_audit_goes_on(data: Path, tmp_path: Path) -> None:
    (data / "polyp" / "loop.jpg").symlink_to("loop.jpg")
    (data / "polyp" / "long.jpg").symlink_to("x" * 300)
    (data / "polyp" / "under-a-file.jpg").symlink_to("0.png/x.jpg")
    output = run(data, "-o", tmp_path / "audit.html")
    record = json.loads((tmp_path / "audit.json").read_text())
    text = json.dumps(record) + output
    assert all(name in text for name in ("loop.jpg", "long.jpg", "under-a-file.jpg"))
    assert "symbolic links" in text
    assert "name too long" in text.lower()


def test_folders_that_cannot_be_listed_are_listed_and_the_audit_goes_on(data: Path, tmp_path: Path) -> None:
    layouts.write_unlisted(data / "polyp")
    output = run(data, "-o", tmp_path / "audit.html")
    record = json.loads((tmp_path / "audit.json").read_text())
    assert "22 images in 3 classes; 3 cannot be read" in output
    assert any("polyp/circle/" in json.dumps(one) for one in record["unreadable"])
    assert "name too long" in json.dumps(record["unreadable"]).lower()
