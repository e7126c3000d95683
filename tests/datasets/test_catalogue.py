"""What is known about the public data sets; the presets give the paper's classes, tasks and test sizes."""

import hashlib
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import layouts
import numpy as np
import pytest
from PIL import Image

from endocil.cli import data as downloads
from endocil.data.scenario import Scenario, keep_classes
from endocil.data.splits import TEST, TRAIN
from endocil.datasets.public.facts import PUBLIC, Archive, check_archive, describe, find, published_table
from endocil.errors import EndocilError
from endocil.runs.parts import scenario_of
from endocil.settings.settings import load_settings

HYPER_KVASIR_ORDER = (
    *("bbps-0-1", "bbps-2-3", "cecum", "dyed-lifted-polyps", "dyed-resection-margins", "esophagitis-a"),
    *("esophagitis-b-d", "impacted-stool", "polyps", "pylorus", "retroflex-rectum", "retroflex-stomach"),
    *("ulcerative-colitis-grade-1", "ulcerative-colitis-grade-2", "ulcerative-colitis-grade-3", "z-line"),
)


def scenario(preset: str) -> Scenario:
    """What a preset makes of the published number of images."""
    settings = load_settings(preset)
    chosen = settings.scenario
    table = published_table(find(settings.data.name))
    kept = keep_classes(table, minimum=chosen.minimum, leave_out=chosen.leave_out, order=chosen.order)
    return scenario_of(kept, settings)


@pytest.mark.parametrize(
    ("preset", "sizes", "test", "images"),
    [
        ("hyper-kvasir", [4, 3, 3, 3, 3], 2103, 10_479),
        ("gastrovision", [4, 3, 3, 3, 3], 1517, 7_553),
        ("kvasir-capsule", [2, 2, 2, 2, 2], 2570, 12_823),
        ("capsule-vision", [3, 2, 2, 2], 2732, 13_648),
        ("kvasir-capsule-with-normal", [3, 2, 2, 2, 2], 9438, 47_161),
        ("capsule-vision-with-normal", [2, 2, 2, 2, 2], 11_628, 58_124),
    ],
)
def test_with_the_published_counts_a_preset_gives_the_papers_tasks_and_test_sizes(
    preset: str, sizes: list[int], test: int, images: int
) -> None:
    made = scenario(preset)
    assert [task.n_new for task in made.tasks] == sizes
    assert made.counts(TEST).sum() == test
    assert len(made.table) == images == made.counts(TRAIN).sum() + test
    assert made.counts(TEST).tolist() == [n - 4 * n // 5 for n in made.table.counts().tolist()]
    assert ("Normal" in made.table.classes or "Normal clean mucosa" in made.table.classes) == ("with" in preset)


def test_the_classes_of_hyper_kvasir_come_in_the_papers_order() -> None:
    assert scenario("hyper-kvasir").table.classes == HYPER_KVASIR_ORDER


@pytest.mark.parametrize("preset", [preset for facts in PUBLIC.values() if facts.of_paper for preset in facts.presets])
def test_a_preset_differs_from_the_papers_defaults_in_its_data_and_tasks_alone(preset: str) -> None:
    settings, defaults = load_settings(preset), load_settings({})
    assert settings.model_copy(update={"data": defaults.data, "scenario": defaults.scenario}) == defaults
    facts = find(settings.data.name)
    assert settings.data.options == {"root": f"${facts.variable}"}
    assert settings.data.size == 256
    assert preset in facts.presets


@pytest.mark.parametrize(
    ("name", "n_classes", "images"),
    [
        ("hyper-kvasir", 23, 10_662),
        ("gastrovision", 27, 8_000),
        ("kvasir-capsule", 14, 47_238),
        ("capsule-vision", 10, 58_124),
    ],
)
def test_counts_add_up_and_every_spelling_means_one_class(name: str, n_classes: int, images: int) -> None:
    facts = find(name)
    assert len(facts.classes) == n_classes
    assert sum(facts.classes.values()) == images
    assert {label: facts.class_of(label) for label in facts.classes} == {label: label for label in facts.classes}
    assert all(facts.class_of(f" {label.upper()} ".replace(" ", "_")) == label for label in facts.classes)
    assert all(facts.class_of(other) == label for other, label in facts.aliases.items())
    assert facts.class_of("spleen") is None


@pytest.mark.parametrize("name", PUBLIC)
def test_where_tells_page_archive_terms_citation_and_the_tasks(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    downloads.where(name)
    told = capsys.readouterr().out
    facts = find(name)
    needed = [*facts.pages, facts.archives[0].url, facts.licence, facts.citation, facts.place, facts.variable]
    assert all(text in told for text in (*needed, *facts.presets, *(a.sha256 for a in facts.archives)))
    assert f"{scenario(facts.presets[0]).counts(TEST).sum():,}" in told
    assert "not resolved" in facts.licence
    assert describe(facts) in told


def test_an_unknown_data_set_is_refused_with_the_known_ones() -> None:
    with pytest.raises(EndocilError, match="known: hyper-kvasir, gastrovision, kvasir-capsule, capsule-vision"):
        downloads.where("imagenet")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hyper-Kvasir as if its miniature were all that was ever published."""
    counts = Counter(image.split("/")[0] for image in layouts.HYPER_KVASIR_IDS)
    facts = replace(PUBLIC["hyper-kvasir"], counts={"": counts}, archives=())
    monkeypatch.setitem(PUBLIC, "hyper-kvasir", facts)


@pytest.mark.usefixtures("small")
def test_a_complete_download_passes_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = layouts.write_hyper_kvasir(tmp_path / "data")
    downloads.check("hyper-kvasir", root)
    told = capsys.readouterr().out
    assert "complete, 12 images" in told
    assert ["cecum", "2", "2", "complete"] in [line.split() for line in told.splitlines()]
    downloads.check("hyper-kvasir", layouts.zip_folder(root, tmp_path / "x.zip"))
    assert "no size or checksum is known" in capsys.readouterr().out


@pytest.mark.usefixtures("small")
def test_missing_extra_and_unreadable_images_fail_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = layouts.write_hyper_kvasir(tmp_path)
    lower = root / "labeled-images/lower-gi-tract"
    (lower / "anatomical-landmarks/cecum/aa-1.jpg").unlink()
    (lower / "pathological-findings/polyps/dd-1.jpg").write_bytes(b"no image")
    layouts.write(lower / "anatomical-landmarks/ileum", ["more.jpg"])
    with pytest.raises(EndocilError, match=r"is not the published Hyper-Kvasir.*: 3 of 10 classes differ"):
        downloads.check("hyper-kvasir", root)
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["cecum", "2", "1", "1", "missing"] in told
    assert ["ileum", "1", "2", "1", "more"] in told
    assert ["polyps", "2", "2", "1", "unreadable"] in told
    assert ["unreadable:", "polyps/dd-1.jpg:", "not", "a"] in [line[:4] for line in told]


@pytest.mark.usefixtures("small")
def test_an_image_that_was_cut_fails_the_check_unless_only_headers_are_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = layouts.write_hyper_kvasir(tmp_path)
    cut = root / "labeled-images/lower-gi-tract/pathological-findings/polyps/dd-1.jpg"
    noise = np.random.default_rng(0).integers(0, 255, (576, 720, 3), np.uint8)
    Image.fromarray(noise).save(cut)
    whole = cut.read_bytes()
    for share in (0.5, 0.95):
        cut.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(EndocilError, match="1 of 10 classes differ"):
            downloads.check("hyper-kvasir", root)
        assert "unreadable: polyps/dd-1.jpg: image file is truncated" in capsys.readouterr().out
        downloads.check("hyper-kvasir", root, quick=True)
        assert "only their headers were read" in capsys.readouterr().out
    cut.unlink()
    os.mkfifo(cut)
    for quick in (True, False):
        with pytest.raises(EndocilError, match="1 of 10 classes differ"):
            downloads.check("hyper-kvasir", root, quick=quick)


@pytest.mark.usefixtures("small")
def test_archives_inside_a_folder_are_extracted_with_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = layouts.write_hyper_kvasir(tmp_path / "data")
    layouts.zip_folder(root / "labeled-images/lower-gi-tract/anatomical-landmarks/cecum", root / "cecum.zip")
    shutil.rmtree(root / "labeled-images/lower-gi-tract/anatomical-landmarks/cecum")
    told: list[str] = []
    monkeypatch.setattr(downloads, "plain_progress", lambda _, what: lambda *done: told.append(what))
    downloads.check("hyper-kvasir", root)
    assert "bytes extracted" in told


def test_where_tells_what_is_known_and_not_known_of_kvasir_capsule() -> None:
    told = describe(find("kvasir-capsule"))
    assert "10 and 12 are not checked" in told
    assert "480373e840c48d7cad45aede92bdc8fa5a7c0064e6b22470d38af9f2032642f5" in told
    assert "Google Drive" in told


def test_size_and_checksum_of_an_archive_are_compared(tmp_path: Path) -> None:
    file = tmp_path / "data.zip"
    file.write_bytes(b"12345")
    known = Archive("data.zip", "images", size=5, sha256=hashlib.sha256(b"12345").hexdigest())
    facts = replace(PUBLIC["hyper-kvasir"], archives=(known,))
    assert check_archive(facts, file) == ("data.zip: size and sha256 are those of data.zip", False)
    file.write_bytes(b"12346")
    verdict, damaged = check_archive(facts, file)
    assert "the sha256 does not" in verdict
    assert damaged
    file.write_bytes(b"1234")
    verdict, damaged = check_archive(facts, file.rename(tmp_path / "data (1).zip"))
    assert "4 bytes, not the 5 of data.zip" in verdict
    assert not damaged
