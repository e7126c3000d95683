"""The page: offline, every text escaped, few pictures, and none where none are wanted."""

import re
from pathlib import Path

import numpy as np
import pytest
from scenes import COPIES, originals, write_folder

from endocil.audit.findings import LISTED, Record, leaks_exist, lines, summary
from endocil.audit.page import PAIRS, PER_GROUP, page, pictures_of
from endocil.data.fingerprints import fingerprints
from endocil.data.near_duplicates import near_duplicates
from endocil.data.scenario import build_scenario
from endocil.data.table import ImageTable
from endocil.datasets.folder import load

ODD = 'a<b>&"x"'


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[ImageTable, Record]:
    """Ten pictures, each with copies in another class: one the very same, one brighter."""
    root = tmp_path_factory.mktemp("audit")
    pictures = {}
    for number, picture in enumerate(originals(10)):
        pictures[f"{ODD}/{number}.png"] = picture
        pictures[f"copies/{number}-same.png"] = picture
        pictures[f"copies/{number}-brighter.png"] = COPIES["brighter"](picture)
    table = load(root=str(write_folder(root / "data", pictures)))
    prints = fingerprints(table, folder=root)
    near = near_duplicates(prints)
    scenario = build_scenario(table, tasks=2)
    return table, summary("<a title>", table, prints, near, scenario, (("x/<i>.png", "the file is <empty>"),))


def test_the_record_counts_what_was_planted(audited: tuple[ImageTable, Record]) -> None:
    _, record = audited
    assert (record["exact"]["sets"], record["exact"]["images"], record["conflicts"]["sets"]) == (10, 20, 10)
    assert record["near"]["pairs"] == 30
    assert record["near"]["groups"] == 10
    assert record["across_classes"]["pairs"] == 20
    assert record["across_split"]["near"]["pairs"] > 0
    assert record["across_split"]["exact_images"] == record["leaks"]["exact_in_train"] * 6
    assert leaks_exist(record)
    assert all(len(found["worst"]) <= LISTED for found in (record["near"], record["across_classes"]))


def test_the_page_asks_nothing_from_outside_and_escapes_every_name(audited: tuple[ImageTable, Record]) -> None:
    table, record = audited
    text = page(record, pictures_of(table))
    assert not re.search(r'(?:src|href)="(?!data:|#)', text)
    assert "url(" not in text
    assert "<script" not in text
    for raw in ("<a title>", ODD, "x/<i>.png", "<empty>"):
        assert raw not in text
    assert "&lt;a title&gt;" in text
    assert "a&lt;b&gt;&amp;&#34;x&#34;" in text


def test_the_page_shows_few_pictures_of_one_group_and_none_where_none_are_wanted(
    audited: tuple[ImageTable, Record],
) -> None:
    table, record = audited
    with_pictures, without = page(record, pictures_of(table)), page(record)
    sheet = with_pictures.split('id="classes"')[1].split("</section>")[0]
    assert sheet.count("<img") == 2 * min(PAIRS, PER_GROUP * 10)
    assert "<img" not in without
    assert "base64" not in without
    assert without.count("<section") == with_pictures.count("<section")


def test_without_a_split_there_is_nothing_about_train_and_test(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", {f"a/{k}.png": picture for k, picture in enumerate(originals(2))})
    table = load(root=str(root))
    prints = fingerprints(table, folder=tmp_path)
    record = summary("few", table, prints, near_duplicates(prints), None)
    assert (record["leaks"], record["across_split"], leaks_exist(record)) == (None, None, False)
    assert 'id="leaks"' not in page(record)
    assert "no split" in lines(record)[-1]


def test_the_lines_tell_rates_as_percentages(audited: tuple[ImageTable, Record]) -> None:
    _, record = audited
    told = "\n".join(lines(record))
    assert "30 images in 2 classes; 1 cannot be read" in told
    assert f"the same image {100 * record['leaks']['exact_in_train']:.1f} %" in told
    assert "group" not in told.splitlines()[-1]  # this data has none
    assert np.isfinite(record["sources"][0]["brightness"])
