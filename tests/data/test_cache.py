"""Pixels are decoded once; a crash, a second process or a damaged file never gives wrong ones."""

import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from endocil.data import cache
from endocil.data.cache import Images, load_images, unfinished_files
from endocil.data.decode import FileReader
from endocil.data.table import ImageTable, Reader, UnreadableImageError
from endocil.errors import EndocilError

SIZE = 8


class CountingReader:
    """Image "7" is the colour 7; remembers what was read; fails where it is told to."""

    def __init__(self, unreadable: Sequence[str] = (), explode: str = "") -> None:
        self.unreadable, self.explode = unreadable, explode
        self.reads: list[str] = []

    def read(self, image_id: str, size: int) -> np.ndarray:
        self.reads.append(image_id)
        if image_id in self.unreadable:
            raise UnreadableImageError(f"reason {image_id}")
        if image_id == self.explode:
            raise RuntimeError("the reader crashed")
        return np.full((size, size, 3), int(image_id), np.uint8)

    def fingerprint(self, ids: Sequence[str]) -> str:
        return "colours"


class SlowReader:
    """Writes one line per image that is really read, so that two processes can be counted together."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def read(self, image_id: str, size: int) -> np.ndarray:
        with open(self.log, "a") as file:
            file.write(f"{image_id}\n")
        time.sleep(0.01)
        return np.full((size, size, 3), int(image_id), np.uint8)

    def fingerprint(self, ids: Sequence[str]) -> str:
        return "slow"


def make_table(reader: Reader, n: int = 100) -> ImageTable:
    ids = tuple(str(i) for i in range(n))
    return ImageTable(ids, np.arange(n) % 2, ("a", "b"), reader, ("",) * n, ("",) * n)


def colours(images: Images) -> list[int]:
    return images.gather(torch.arange(len(images.table)))[:, 0, 0, 0].tolist()


def stored(folder: Path) -> list[str]:
    """Everything but the lock: what counts as pixels or could be taken for them."""
    return sorted(path.suffix for path in folder.iterdir() if path.suffix != ".lock")


def test_pixels_are_read_once_and_then_come_from_the_file(tmp_path: Path) -> None:
    reader = CountingReader()
    first = load_images(make_table(reader), SIZE, folder=tmp_path)
    again = load_images(make_table(reader), SIZE, folder=tmp_path)
    assert sorted(reader.reads, key=int) == [str(i) for i in range(100)]
    assert first.pixels.shape == (100, SIZE, SIZE, 3)
    assert first.pixels.dtype == torch.uint8
    assert colours(first) == colours(again) == list(range(100))
    assert first.skipped == ()
    assert stored(tmp_path) == [".json", ".npy"]


def test_gathered_pixels_are_copies_in_the_order_asked_for(tmp_path: Path) -> None:
    images = load_images(make_table(CountingReader()), SIZE, folder=tmp_path)
    batch = images.gather(torch.tensor([9, 3, 9]))
    assert batch[:, 0, 0, 0].tolist() == [9, 3, 9]
    batch.zero_()
    assert images.gather(torch.tensor([9]))[0, 0, 0, 0] == 9


def test_another_size_has_pixels_of_its_own(tmp_path: Path) -> None:
    load_images(make_table(CountingReader()), 8, folder=tmp_path)
    assert load_images(make_table(CountingReader()), 9, folder=tmp_path).pixels.shape[1:] == (9, 9, 3)
    assert stored(tmp_path) == [".json", ".json", ".npy", ".npy"]


def test_the_folder_of_the_environment_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENDOCIL_CACHE", str(tmp_path / "mine"))
    load_images(make_table(CountingReader()), SIZE)
    assert stored(tmp_path / "mine") == [".json", ".npy"]


def test_progress_ends_at_the_number_of_images(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    load_images(
        make_table(CountingReader()), SIZE, folder=tmp_path, progress=lambda *call: calls.append(call), workers=3
    )
    assert calls[-1] == (100, 100)
    assert calls == sorted(calls)
    assert len(calls) > 2


def test_unreadable_images_are_refused_by_name_with_reasons_and_the_way_out(tmp_path: Path) -> None:
    reader = CountingReader(unreadable=[str(i) for i in range(10, 17)])
    for _ in range(2):  # the second answer comes from the stored list
        with pytest.raises(EndocilError) as error:
            load_images(make_table(reader), SIZE, folder=tmp_path)
        assert str(error.value) == (
            "7 of 100 images cannot be read (10: reason 10; 11: reason 11; 12: reason 12; 13: reason 13; "
            "14: reason 14; ...); data.skip_unreadable = true leaves them out and records them"
        )
    assert len(reader.reads) == 100


def test_skipped_images_are_left_out_of_the_table_and_recorded(tmp_path: Path) -> None:
    reader = CountingReader(unreadable=["3", "50"])
    for _ in range(2):
        images = load_images(make_table(reader), SIZE, folder=tmp_path, skip_unreadable=True)
        kept = [i for i in range(100) if i not in (3, 50)]
        assert images.table.ids == tuple(map(str, kept))
        assert images.table.labels.tolist() == [i % 2 for i in kept]
        assert colours(images) == kept
        assert images.skipped == (("3", "reason 3"), ("50", "reason 50"))
    assert len(reader.reads) == 100


def test_a_table_without_any_readable_image_is_refused_even_when_skipping(tmp_path: Path) -> None:
    reader = CountingReader(unreadable=["0", "1"])
    with pytest.raises(EndocilError, match="2 of 2 images cannot be read"):
        load_images(make_table(reader, 2), SIZE, folder=tmp_path, skip_unreadable=True)
    with pytest.raises(EndocilError, match="no images"):
        load_images(make_table(reader, 0), SIZE, folder=tmp_path)


def test_a_build_that_crashed_goes_on_where_it_ended(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the reader crashed"):
        load_images(make_table(CountingReader(["3"], explode="70")), SIZE, folder=tmp_path, workers=1)
    assert stored(tmp_path) == [".jsonl", ".part"]  # nothing that counts as pixels
    reader, calls = CountingReader(["3"]), list[int]()
    images = load_images(
        make_table(reader), SIZE, folder=tmp_path, skip_unreadable=True, progress=lambda done, _: calls.append(done)
    )
    assert sorted(map(int, reader.reads)) == list(range(64, 100))  # two chunks of 32 were there
    assert calls == [96, 100]
    assert colours(images) == [i for i in range(100) if i != 3]
    assert images.skipped == (("3", "reason 3"),)
    assert stored(tmp_path) == [".json", ".npy"]


def cut_pixels(part: Path, _: Path) -> None:
    part.write_bytes(part.read_bytes()[:-1])


def zero_last_chunk(part: Path, _: Path) -> None:
    part.write_bytes(part.read_bytes()[:-5000] + bytes(5000))


def cut_lines(_: Path, lines: Path) -> None:
    lines.write_bytes(lines.read_bytes()[:-1])


def add_nonsense(_: Path, lines: Path) -> None:
    lines.write_bytes(lines.read_bytes()[:-20] + b"\n[1]\n{}\nnonsense")


def other_header(part: Path, _: Path) -> None:
    part.write_bytes(b"X" + part.read_bytes()[1:])


def no_lines(_: Path, lines: Path) -> None:
    lines.unlink()


@pytest.mark.parametrize(
    ("damage", "read_again"),
    [
        (cut_pixels, 68),
        (zero_last_chunk, 68),
        (cut_lines, 68),
        (add_nonsense, 68),
        (other_header, 100),
        (no_lines, 100),
    ],
)
def test_only_sound_chunks_of_an_unfinished_build_are_taken_over(
    tmp_path: Path, damage: Callable[[Path, Path], None], read_again: int
) -> None:
    with pytest.raises(RuntimeError):
        load_images(make_table(CountingReader(explode="70")), SIZE, folder=tmp_path, workers=1)
    damage(next(tmp_path.glob(".*.part")), next(tmp_path.glob(".*.jsonl")))
    reader = CountingReader()
    assert colours(load_images(make_table(reader), SIZE, folder=tmp_path)) == list(range(100))
    assert len(reader.reads) == read_again


def build_and_die(log: Path, folder: Path) -> None:
    load_images(make_table(SlowReader(log), 250), SIZE, folder=folder, workers=1)


@pytest.mark.skipif(os.name == "nt", reason="without locks a build starts anew")
def test_a_killed_build_is_continued(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "cache"
    process = multiprocessing.get_context("spawn").Process(target=build_and_die, args=(log, folder))
    process.start()
    while not log.exists() or len(log.read_text().split()) < 100:
        assert process.is_alive()
        time.sleep(0.02)
    process.kill()
    process.join(60)
    log.unlink()
    images = load_images(make_table(SlowReader(log), 250), SIZE, folder=folder)
    assert colours(images) == list(range(250))
    assert len(log.read_text().split()) <= 250 - 64
    assert stored(folder) == [".json", ".npy"]


def test_a_disk_that_fails_at_the_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EndocilError, match="No space left on device"):
        load_images(make_table(CountingReader()), SIZE, folder=tmp_path / "full")
    assert stored(tmp_path / "full") == [".jsonl", ".part"]


def test_a_build_without_a_lock_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "lock", lambda _: "none")
    with pytest.raises(RuntimeError):
        load_images(make_table(CountingReader(explode="70")), SIZE, folder=tmp_path)
    assert stored(tmp_path) == []
    assert colours(load_images(make_table(CountingReader()), SIZE, folder=tmp_path)) == list(range(100))
    assert stored(tmp_path) == [".json", ".npy"]


def test_a_crash_between_pixels_and_facts_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cache, "write_json", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load_images(make_table(CountingReader()), SIZE, folder=tmp_path)
    reader = CountingReader()
    assert colours(load_images(make_table(reader), SIZE, folder=tmp_path)) == list(range(100))
    assert len(reader.reads) == 100


def test_a_build_killed_when_all_was_written_leaves_no_names_of_images(tmp_path: Path) -> None:
    load_images(make_table(CountingReader()), SIZE, folder=tmp_path)
    left = unfinished_files(next(tmp_path.glob("*.npy")))[1]
    left.write_text("{}\n")
    load_images(make_table(CountingReader()), SIZE, folder=tmp_path)
    assert not left.exists()


def damage_cut(npy: Path, _: Path) -> None:
    npy.write_bytes(npy.read_bytes()[:-100])


def damage_zero(npy: Path, _: Path) -> None:
    npy.write_bytes(npy.read_bytes()[:128] + bytes(npy.stat().st_size - 128))


def damage_other_array(npy: Path, _: Path) -> None:
    np.save(npy, np.zeros((3, 3)))


def damage_header(npy: Path, _: Path) -> None:
    npy.write_bytes(b"garbage" + npy.read_bytes()[7:])


def damage_one_bit(npy: Path, _: Path) -> None:
    content = bytearray(npy.read_bytes())
    content[128 + 71 * SIZE * SIZE * 3 + 17] ^= 4
    npy.write_bytes(content)


def damage_last_bit(npy: Path, _: Path) -> None:
    content = npy.read_bytes()
    npy.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def damage_facts(_: Path, facts: Path) -> None:
    facts.write_text('{"checksum": 1')


def damage_other_facts(_: Path, facts: Path) -> None:
    facts.write_text("[]")


@pytest.mark.parametrize(
    "damage",
    [
        *(damage_cut, damage_zero, damage_other_array, damage_header, damage_one_bit, damage_last_bit),
        *(damage_facts, damage_other_facts),
    ],
)
def test_a_damaged_cache_is_built_again(tmp_path: Path, damage: Callable[[Path, Path], None]) -> None:
    table = make_table(CountingReader())
    load_images(table, SIZE, folder=tmp_path)
    digest = table.digest(SIZE)
    sound = (tmp_path / f"{digest}.npy").read_bytes()
    damage(tmp_path / f"{digest}.npy", tmp_path / f"{digest}.json")
    assert colours(load_images(table, SIZE, folder=tmp_path)) == list(range(100))
    assert (tmp_path / f"{digest}.npy").read_bytes() == sound


def test_a_full_disk_is_said_before_anything_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "free_bytes", lambda _: 100)
    reader = CountingReader()
    with pytest.raises(EndocilError, match=r"need 19,200 bytes, but 100 are free .*ENDOCIL_CACHE"):
        load_images(make_table(reader), SIZE, folder=tmp_path)
    assert reader.reads == []
    assert stored(tmp_path) == []


def test_a_cache_that_cannot_be_written_names_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EndocilError, match="set ENDOCIL_CACHE to another folder"):
        load_images(make_table(CountingReader()), SIZE, folder=tmp_path / "file")


def test_a_reader_that_gives_the_wrong_shape_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = CountingReader()
    monkeypatch.setattr(reader, "read", lambda image_id, size: np.zeros((size, size), np.uint8))
    with pytest.raises(EndocilError, match=r"'0' as uint8 of shape \(8, 8\)"):
        load_images(make_table(reader), SIZE, folder=tmp_path)


def build_in_another_process(log: Path, folder: Path, both_ready: Barrier) -> None:
    both_ready.wait(60)
    images = load_images(make_table(SlowReader(log), 150), SIZE, folder=folder)
    assert colours(images) == list(range(150))


@pytest.mark.skipif(os.name == "nt", reason="without locks both processes build")
def test_two_processes_at_once_build_one_cache(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "cache"
    context = multiprocessing.get_context("spawn")
    both_ready = context.Barrier(2)
    both = [context.Process(target=build_in_another_process, args=(log, folder, both_ready)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert sorted(log.read_text().split(), key=int) == [str(i) for i in range(150)]
    assert stored(folder) == [".json", ".npy"]


def write_image(path: Path, colour: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 10), (colour, colour, colour)).save(path)


def file_table(root: Path) -> ImageTable:
    return ImageTable(("a/0.png", "a/1.png"), np.zeros(2), ("a",), FileReader(root), ("", ""), ("", ""))


def test_a_changed_file_is_decoded_again(tmp_path: Path) -> None:
    root = tmp_path / "images"
    for i in (0, 1):
        write_image(root / f"a/{i}.png", 50 + i)
    assert colours(load_images(file_table(root), SIZE, folder=tmp_path / "cache")) == [50, 51]
    write_image(root / "a/1.png", 99)
    os.utime(root / "a/1.png", ns=(1, 1))
    assert colours(load_images(file_table(root), SIZE, folder=tmp_path / "cache")) == [50, 99]


def test_a_repaired_file_is_no_longer_unreadable(tmp_path: Path) -> None:
    root = tmp_path / "images"
    write_image(root / "a/0.png", 50)
    (root / "a/1.png").write_bytes(b"")
    with pytest.raises(EndocilError, match=r"1 of 2 images cannot be read \(a/1.png: the file is empty\)"):
        load_images(file_table(root), SIZE, folder=tmp_path / "cache")
    shutil.copy(root / "a/0.png", root / "a/1.png")
    assert colours(load_images(file_table(root), SIZE, folder=tmp_path / "cache")) == [50, 50]


def test_an_image_name_that_is_no_unicode_can_be_unreadable_and_remembered(tmp_path: Path) -> None:
    name = b"caf\xe9.png".decode(errors="surrogateescape")
    table = ImageTable(("0", name), np.zeros(2), ("a",), CountingReader([name]), ("", ""), ("", ""))
    images = load_images(table, SIZE, folder=tmp_path, skip_unreadable=True)
    assert images.skipped == ((name, f"reason {name}"),)
    (facts,) = tmp_path.glob("*.json")
    assert json.loads(facts.read_text("utf-8", "surrogateescape"))["unreadable"][0][0] == name
