"""Damaged and hostile files end in pixels or in a listed reason: no traceback, no hang, nothing outside the folder."""

import sys

import pytest
from damaged import bombs, damaged, pictures, run

from endocil.data.decode import decode
from endocil.data.table import UnreadableImageError


@pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux")
@pytest.mark.slow
def test_damaged_files_end_in_pixels_or_a_reason_and_leave_nothing_outside() -> None:
    jobs = (("images", 0, 250), ("dicom", 0, 60), ("archives", 0, 150), ("folders", 0, 40))
    for (what, _, n), found in zip(jobs, run(*jobs), strict=True):
        assert found["failures"] == []
        assert found["good"] + found["refused"] == n
        assert found["good"] >= 10
        assert found["refused"] == 0 if what == "folders" else found["refused"] >= 10


@pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux")
@pytest.mark.slow
def test_damaged_records_and_requests_end_in_a_result_or_a_reason_and_no_flipped_bit_becomes_a_result() -> None:
    jobs = [("lists", 0, 90), ("settings", 0, 90), ("cache", 60, 150), ("requests", 0, 60)]
    jobs += [("checkpoints", 0, 40), ("skipped", 0, 60), ("made", 0, 40)]
    for (_, start, stop), found in zip(jobs, run(*jobs), strict=True):
        assert found["failures"] == []
        assert found["good"] + found["refused"] == stop - start


def test_the_sound_files_behind_the_damaged_ones_are_sound() -> None:
    for data in pictures().values():
        assert decode(data, 8).shape == (8, 8, 3)


@pytest.mark.parametrize("name", sorted(set(bombs()) - {"png just below the limit"}))
def test_a_bomb_is_refused(name: str) -> None:
    with pytest.raises(UnreadableImageError):
        decode(bombs()[name], 8)


def test_the_same_number_is_the_same_file() -> None:
    for number in (50, 99):
        assert damaged(pictures(), bombs(), "image", number) == damaged(pictures(), bombs(), "image", number)
