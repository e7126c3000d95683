"""Features of a frozen backbone: computed once, the same bits with a store as without, damaged files noticed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from life import FROZEN, Life, differing, new_method, state_of
from pictures import TINY, make_images
from torch import nn

from endocil.data.batches import ImageSet
from endocil.data.cache import FEATURES, Images, clear, contents
from endocil.errors import ResourceError
from endocil.learning import features
from endocil.learning.features import FeatureStore, features_of, key_of, outputs_of
from endocil.methods.simplecil import SimpleCIL
from endocil.networks import build_backbone
from endocil.registry import trust
from endocil.runs.run import run

COUNTS = [5, 4, 6]


@pytest.fixture
def images() -> Images:
    return make_images(COUNTS)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images went through the network, call by call."""
    calls: list[int] = []
    embed_each: Callable[..., Any] = features.embed_each

    def counted(method: Any, images: ImageSet) -> Any:
        calls.append(len(images))
        return embed_each(method, images)

    monkeypatch.setattr(features, "embed_each", counted)
    return calls


def grown(seed: int = 0) -> Any:
    method = new_method("simplecil", seed=seed)
    return method.to(memory_format=torch.channels_last).eval()


def everything(images: Images) -> ImageSet:
    return ImageSet.of(images, torch.arange(len(images.labels)))


def test_a_store_gives_the_bits_that_are_computed_without_it(
    images: Images, tmp_path: Path, computed: list[int]
) -> None:
    method, wanted = grown(), everything(images)
    expected = features_of(method, wanted, 4)
    for rows in (torch.arange(7), torch.arange(14).flip(0), torch.arange(15)):  # other neighbours each time
        part = wanted.take(rows)
        assert torch.equal(features_of(method, part, 4, store=FeatureStore(tmp_path)), expected[rows])
    assert computed == [15, 7, 7, 1]


def test_processes_methods_and_copies_of_an_image_share_what_was_computed(
    images: Images, tmp_path: Path, computed: list[int]
) -> None:
    twice = everything(images).take(torch.tensor([3, 3, 8]))
    first = features_of(grown(), twice, 4, store=FeatureStore(tmp_path))
    again = features_of(
        new_method("analytic").to(memory_format=torch.channels_last), twice, 4, store=FeatureStore(tmp_path)
    )
    assert torch.equal(first, again)
    assert computed == [2]


def test_another_network_has_other_features(images: Images, tmp_path: Path) -> None:
    one, other = grown(), grown(seed=1)
    assert key_of(one) != key_of(other)
    store, wanted = FeatureStore(tmp_path), everything(images)
    assert not torch.equal(features_of(one, wanted, 4, store=store), features_of(other, wanted, 4, store=store))
    assert torch.equal(features_of(one, wanted, 4, store=store), features_of(one, wanted, 4))
    assert len([*tmp_path.iterdir()]) == 2
    threads = torch.get_num_threads()
    before = key_of(one)
    torch.set_num_threads(threads + 1)
    assert key_of(one) != before  # another number of threads may round otherwise


def test_networks_of_the_same_weights_that_compute_otherwise_have_other_features() -> None:
    stems = [build_backbone("resnet18", seed=0, options={"width": 8, "stem": stem})[0] for stem in ("3x3", "3x3-pool")]
    assert key_of(SimpleCIL(stems[0])) != key_of(SimpleCIL(stems[1]))
    # LUCIR takes the last ReLU out of its backbone
    assert key_of(new_method("lucir", freeze=("all",))) != key_of(new_method("icarl", freeze=("all",)))


class Brightest(nn.Module):
    """A backbone whose option stands neither in its weights nor in its repr."""

    n_features = 3

    def __init__(self, *, brightest: bool = False) -> None:
        super().__init__()
        self.brightest = brightest

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return pictures.amax((2, 3)) if self.brightest else pictures.mean((2, 3))


def test_networks_that_differ_by_an_option_alone_have_other_features(images: Images, tmp_path: Path) -> None:
    name = "test_feature_store:Brightest"
    trust([name])
    store, wanted = FeatureStore(tmp_path), everything(images)
    methods = [
        SimpleCIL(build_backbone(name, seed=0, freeze=["all"], options={"brightest": brightest})[0])
        for brightest in (False, True)
    ]
    one, other = (features_of(method, wanted, 4, store=store) for method in methods)
    assert not torch.equal(one, other)
    assert torch.equal(other, features_of(methods[1], wanted, 4))


def test_a_method_with_features_of_its_own_stores_them_apart(images: Images, tmp_path: Path) -> None:
    plain, own = new_method("analytic"), new_method("multistage")
    assert key_of(plain) == key_of(new_method("simplecil")) != key_of(own)
    assert key_of(own) == key_of(new_method("ranpac", features="stages"))
    assert key_of(plain) == key_of(new_method("multistage", features="last"))
    store, wanted = FeatureStore(tmp_path), everything(images)
    assert features_of(plain, wanted, 4, store=store).shape != features_of(own, wanted, 4, store=store).shape
    assert torch.equal(features_of(own, wanted, 4, store=store), features_of(own, wanted, 4))


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: data[:-3] + b"\x07\x07\x07", lambda _: b""]
)
def test_a_damaged_file_is_noticed_and_computed_again(
    images: Images, tmp_path: Path, computed: list[int], damage: Callable[[bytes], bytes]
) -> None:
    method, wanted = grown(), everything(images)
    expected = features_of(method, wanted, 4, store=FeatureStore(tmp_path))
    (file,) = tmp_path.glob("*/*.safetensors")
    file.write_bytes(damage(file.read_bytes()))
    assert torch.equal(features_of(method, wanted, 4, store=FeatureStore(tmp_path)), expected)
    assert computed == [15, 15]
    assert torch.equal(features_of(method, wanted, 4, store=FeatureStore(tmp_path)), expected)
    assert computed == [15, 15]


def test_a_pass_that_was_killed_keeps_the_chunks_that_it_has_finished(
    images: Images, tmp_path: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "CHUNK", 6)
    method, wanted = grown(), everything(images)
    write, written = FeatureStore._write, list[None]()

    def dying(self: FeatureStore, *content: Any) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        write(self, *content)
        written.append(None)

    monkeypatch.setattr(FeatureStore, "_write", dying)
    with pytest.raises(KeyboardInterrupt):
        features_of(method, wanted, 4, store=FeatureStore(tmp_path))
    monkeypatch.setattr(FeatureStore, "_write", write)
    assert torch.equal(features_of(method, wanted, 4, store=FeatureStore(tmp_path)), features_of(method, wanted, 4))
    assert computed == [6, 6, 3, 3, 15]


def test_a_file_has_fewer_images_where_one_takes_much(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "CHUNK_BYTES", 400)

    def compute(some: Any) -> torch.Tensor:
        return torch.ones(len(some), 25)

    rows = FeatureStore(tmp_path).rows("key", everything(images), compute, row_bytes=100)
    assert len(rows) == 15
    assert len(list(tmp_path.glob("key/*.safetensors"))) == 4  # of at most four images each


def test_scores_and_what_exemplars_are_chosen_by_come_from_the_same_features(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path / "life", new_method("simplecil"), increments=(2, 1)).live(1)
    seen = outputs_of(life.method, everything(images), 4, for_selection=True, store=FeatureStore(tmp_path / "store"))
    plain = outputs_of(life.method, everything(images), 4, for_selection=True)
    for name in ("features", "logits", "for_selection"):
        assert torch.equal(getattr(seen, name), getattr(plain, name))
    assert seen.logits.shape == (15, 2)
    torch.testing.assert_close(seen.logits, life.method.classify(seen.features).detach())


def test_an_image_set_and_its_plain_pixels_have_the_same_outputs(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path / "life", new_method("simplecil"), increments=(2, 1)).live()
    wanted = everything(images)
    listed, plain = outputs_of(life.method, wanted, 4), outputs_of(life.method, wanted.gather(torch.arange(15)), 6)
    assert torch.equal(listed.features, plain.features)
    torch.testing.assert_close(listed.logits, plain.logits)


def test_a_method_that_trains_its_backbone_stores_nothing(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path / "life", new_method("icarl", epochs=1), increments=(2, 1))
    life.learner.features = FeatureStore(tmp_path / "store")
    life.live(1)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("name", FROZEN)
def test_a_life_with_a_store_ends_in_the_same_bits_as_one_without(name: str, images: Images, tmp_path: Path) -> None:
    plain = Life(images, tmp_path / "plain", new_method(name), increments=(2, 1)).live()
    for turn in ("filling", "reading"):
        life = Life(images, tmp_path / turn, new_method(name), increments=(2, 1))
        life.learner.features = FeatureStore(tmp_path / "store")
        assert differing(state_of(life.live().method), state_of(plain.method)) == []


def test_a_run_keeps_features_in_the_cache_unless_it_is_told_not_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[int]
) -> None:
    monkeypatch.setenv("ENDOCIL_CACHE", str(tmp_path / "cache"))
    settings = {**TINY, "method": {"name": "analytic"}}
    off = run({**settings, "run": {"threads": 1, "features": False}}, tmp_path / "off")
    assert not (tmp_path / "cache" / FEATURES).exists()
    computed.clear()
    once = run(settings, tmp_path / "once")
    assert sum(computed) == len((once.folder / "split.csv").read_text().splitlines()) - 1  # every image once
    computed.clear()
    again = run(settings, tmp_path / "again")
    assert computed == []
    for result in (once, again):
        assert result.metrics == off.metrics
        for file in ("predictions/task-2.csv", "predictions/task-0.csv"):
            assert (result.folder / file).read_bytes() == (off.folder / file).read_bytes()
    kinds = {entry.kind for entry in contents(tmp_path / "cache")}
    assert "features of frozen backbones" in kinds
    clear(tmp_path / "cache")
    assert not (tmp_path / "cache" / FEATURES).exists()


def test_a_folder_that_cannot_be_written_is_named_with_the_way_out(images: Images, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match=r"file cannot|kept in .*file.*run.features=false"):
        features_of(grown(), everything(images), 4, store=FeatureStore(tmp_path / "file"))
