"""Methods for frozen features: what they compute, whatever the order of tasks, and what can be taken out again."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from life import FROZEN, new_method
from pictures import make_images
from sklearn.covariance import EmpiricalCovariance
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.neighbors import NearestCentroid
from torch import Tensor, nn

from endocil.components.ridge import add_products, packed_length, solve, squared_errors, trace
from endocil.data.batches import ImageSet
from endocil.data.cache import Images
from endocil.data.scenario import Task
from endocil.errors import EndocilError
from endocil.methods import build_method, method_options
from endocil.methods.base import TaskData, shared_schedule
from endocil.methods.multistage import GAMMA, SHARE
from endocil.networks import GrowingClassifier, build_backbone

D = 64  # features of the tests' backbone
COUNTS = [14, 3, 9, 22, 2]
OPTIONS: dict[str, dict[str, Any]] = {
    "analytic": {"ratio": 0.03},
    "multistage": {"random": 30},
    "ranpac": {"projected": 50},
}


@pytest.fixture(scope="module")
def images() -> Images:
    return make_images(COUNTS)


@pytest.fixture(scope="module")
def features(images: Images) -> Tensor:
    """Skewed, correlated and far from the origin, as those of a network are; one row for each image."""
    random = torch.Generator().manual_seed(5)
    centres = torch.randn(len(COUNTS), D, generator=random, dtype=torch.float64)
    noise = torch.randn(len(images.labels), D, generator=random, dtype=torch.float64)
    return (centres[images.labels] + noise).relu() + 0.5


def learned(name: str, images: Images, features: Tensor, tasks: Sequence[Tensor], **options: Any) -> Any:
    """A method in float64 that has learned these rows, task by task; new classes get the next labels."""
    method = new_method(name, **{**OPTIONS.get(name, {}), **options}).double()
    if name == "multistage":  # its features are given, not pooled from a network
        method.n_features, method.classifier = D, GrowingClassifier(D + method.random).double()
    known: list[int] = []
    for index, rows in enumerate(tasks):
        own = images.labels[rows].tolist()
        new = [label for label in dict.fromkeys(own) if label not in known]
        task = Task(index, len(known), len(new))
        known += new
        relabelled = _Relabelled(
            images, torch.tensor([known.index(label) if label in known else -1 for label in range(5)])
        )
        method.grow(task)
        method.consolidate(
            task,
            TaskData(
                ImageSet.of(relabelled, rows), ImageSet.of(relabelled, rows[:0]), features=lambda s: features[s.rows]
            ),
        )
    method.order = known
    return method


class _Relabelled:
    """The images with other numbers for their classes."""

    def __init__(self, images: Images, number: Tensor) -> None:
        self.images, self.labels = images, number[images.labels]

    def gather(self, index: Tensor) -> Tensor:
        return self.images.gather(index)

    def describe(self, row: int) -> tuple[str, str, str]:
        return self.images.describe(row)


def scores(method: Any, features: Tensor) -> Tensor:
    """Columns by the number that each class has in the data."""
    found: Tensor = method.classify(features).detach()
    return found[:, torch.tensor(method.order).argsort()]


def everything(images: Images) -> Tensor:
    return torch.arange(len(images.labels))


def test_simplecil_is_the_nearest_class_mean_by_the_cosine(images: Images, features: Tensor) -> None:
    method = learned("simplecil", images, features, [everything(images)])
    means = NearestCentroid().fit(features.numpy(), images.labels.numpy()).centroids_
    lengths = np.linalg.norm(means, axis=1) * np.linalg.norm(features.numpy(), axis=1)[:, None]
    expected = features.numpy() @ means.T / lengths
    np.testing.assert_allclose(scores(method, features).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_analytic_is_ridge_regression_with_weighted_images(images: Images, features: Tensor, power: float) -> None:
    method = learned("analytic", images, features, [everything(images)], power=power)
    labels = images.labels.numpy()
    weights = np.array(COUNTS, float)[labels] ** -power
    x, y = features.numpy(), np.eye(5)[labels]
    centred = (x - np.average(x, axis=0, weights=weights)) * np.sqrt(weights)[:, None]
    penalty = 0.03 * np.square(centred).sum() / D
    expected = Ridge(alpha=penalty, tol=1e-14).fit(x, y, sample_weight=weights).predict(x)
    np.testing.assert_allclose(scores(method, features).numpy(), expected, rtol=1e-9, atol=1e-10)


def test_ranpac_is_ridge_regression_without_intercept_on_the_projection(images: Images, features: Tensor) -> None:
    method = learned("ranpac", images, features, [everything(images)])
    h = (features @ method.projection).relu().numpy()
    penalty = float(method.statistics["penalty"])
    expected = Ridge(alpha=penalty, fit_intercept=False).fit(h, np.eye(5)[images.labels.numpy()]).predict(h)
    np.testing.assert_allclose(scores(method, features).numpy(), expected, rtol=1e-6, atol=1e-8)
    assert set(np.unique(method.classifier.bias.detach().numpy())) == {0.0}


class _Penalised(EmpiricalCovariance):  # type: ignore[misc]
    """The covariance of one class, with the penalty of all of them."""

    added = 0.0

    def fit(self, x: Any, y: Any = None) -> Any:
        super().fit(x)
        self.covariance_ += self.added * np.eye(D)
        return self


@pytest.mark.parametrize("prior", [0.0, 1.0])
def test_multistage_is_linear_discriminant_analysis(images: Images, features: Tensor, prior: float) -> None:
    method = learned("multistage", images, features, [everything(images)], random=0, prior=prior)
    x, y, n = features.numpy(), images.labels.numpy(), len(images.labels)
    means = np.stack([x[y == label].mean(axis=0) for label in range(5)])
    covariance = _Penalised()
    covariance.added = 0.3 * np.square(x - means[y]).sum() / n / n
    priors = (np.array(COUNTS) / n) ** prior
    peer = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=covariance, priors=np.array(COUNTS) / n)
    expected = peer.fit(x, y).decision_function(x) - np.log(np.array(COUNTS) / n) + np.log(priors)
    found = scores(method, features).numpy()
    np.testing.assert_allclose(
        found - found.mean(axis=1, keepdims=True), expected - expected.mean(axis=1, keepdims=True), rtol=1e-7, atol=1e-7
    )


def test_random_features_of_multistage_stand_for_a_gaussian_kernel(images: Images, features: Tensor) -> None:
    method = learned("multistage", images, features, [everything(images)], random=5_000)
    f = features[:10] / 10.0
    h = method._expanded(f, method.w, method.u)
    expected = f @ f.T + SHARE * torch.exp(-GAMMA * torch.cdist(f, f).square())
    torch.testing.assert_close(h @ h.T, expected, rtol=0.0, atol=0.15)


def test_multistage_pools_the_maps_of_all_stages_from_stride_eight_on() -> None:
    backbone, _ = build_backbone("efficientnet-lite0", seed=0)
    assert new_method("multistage").n_features == 2 * (16 + 32 + 64)  # layer2 to layer4
    method = build_method("multistage", backbone, {}, schedule=shared_schedule(), seed=0).eval()
    assert method.n_features == 2 * (40 + 80 + 112 + 192 + 320)
    images = torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    found, maps = method.embed(images), backbone.stage_maps(images)[3:]  # type: ignore[operator]
    assert [x.shape[2] for x in maps] == [5, 3, 3, 2, 2]
    parts = [part for x in maps for part in (x.mean(dim=(2, 3)), x.std(dim=(2, 3), correction=0))]
    expected = torch.cat([part / part.norm(dim=1, keepdim=True) for part in parts], dim=1)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", FROZEN)
def test_every_frozen_method_stands_on_the_last_features_or_on_the_pooled_stages(name: str) -> None:
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    last, stages = (new_method(name, features=kind, **OPTIONS.get(name, {})).eval() for kind in ("last", "stages"))
    torch.testing.assert_close(last.embed(images), last.backbone(images))
    torch.testing.assert_close(stages.embed(images), new_method("multistage").eval().embed(images))
    for method in (last, stages):
        method.grow(Task(0, 0, 3))
        assert method(images).shape == (2, 3)


def test_multistage_on_last_features_does_not_depend_on_their_length(features: Tensor) -> None:
    method = new_method("multistage", features="last", random=30).double()
    method.grow(Task(0, 0, 3))
    torch.testing.assert_close(method.classify(7.0 * features), method.classify(features))


@pytest.mark.parametrize("name", ["resnet18", "resnet32", "efficientnet-lite2"])
def test_the_last_map_of_the_stages_gives_the_features_of_the_network(name: str) -> None:
    backbone, _ = build_backbone(name, seed=0)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    last = backbone.eval().stage_maps(images)[-1]  # type: ignore[operator]
    pooled = backbone.stage7[1](last) if name.startswith("efficientnet") else last  # type: ignore[index, operator]
    torch.testing.assert_close(pooled.mean(dim=(2, 3)), backbone(images))


def test_multistage_never_predicts_a_class_whose_images_were_all_subtracted(images: Images, features: Tensor) -> None:
    method = learned("multistage", images, features, [everything(images)])
    gone = torch.nonzero(images.labels == 1).flatten()
    method.subtract(ImageSet.of(images, gone), features[gone])
    assert 1 not in scores(method, features).argmax(dim=1)
    assert scores(method, features).isfinite().all()


def test_multistage_learns_from_one_image_of_each_class(images: Images, features: Tensor) -> None:
    rows = torch.stack([torch.nonzero(images.labels == label).flatten()[0] for label in range(5)])
    method = learned("multistage", images, features, [rows])
    assert scores(method, features[rows]).argmax(dim=1).tolist() == list(range(5))


def test_multistage_refuses_a_network_that_does_not_show_its_maps() -> None:
    backbone = nn.Flatten()
    backbone.n_features = 12  # type: ignore[assignment]
    with pytest.raises(EndocilError, match=r"Flatten does not show the maps of its stages.*method.features=\"last\""):
        build_method("multistage", backbone, {}, schedule=shared_schedule(), seed=0)


@pytest.mark.parametrize("name", FROZEN)
def test_no_order_and_no_cut_into_tasks_changes_the_solution(name: str, images: Images, features: Tensor) -> None:
    of = [torch.nonzero(images.labels == label).flatten() for label in range(5)]
    back = [torch.cat([of[3][:9], of[1]]), of[4], torch.cat([of[0], of[2][:2]]), torch.cat([of[2][2:], of[3][9:]])]
    joint = learned(name, images, features, [everything(images)])
    for tasks in ([torch.cat(of[:2]), of[2], torch.cat(of[3:])], [torch.cat(of[2:]).flip(0), of[1], of[0]], back):
        method = learned(name, images, features, tasks)
        if name == "ranpac":  # its penalty is that of the last task
            method.statistics["penalty"] = joint.statistics["penalty"]
            method.solve()
        torch.testing.assert_close(scores(method, features), scores(joint, features), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", FROZEN)
def test_images_of_known_classes_alone_equal_learning_all_at_once(name: str, images: Images, features: Tensor) -> None:
    first = torch.cat([torch.nonzero(images.labels == label).flatten()[:2] for label in range(5)])
    rest = everything(images)[~torch.isin(everything(images), first)]
    method = learned(name, images, features, [first, rest])
    joint = learned(name, images, features, [torch.cat([first, rest])])
    if name == "ranpac":
        joint.statistics["penalty"] = method.statistics["penalty"]
        joint.solve()
    torch.testing.assert_close(scores(method, features), scores(joint, features), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", FROZEN)
def test_subtracting_images_equals_never_having_seen_them(name: str, images: Images, features: Tensor) -> None:
    rows = everything(images)
    gone = torch.tensor([0, 5, 15, 30, 31])
    method = learned(name, images, features, [rows])
    without = learned(name, images, features, [rows[~torch.isin(rows, gone)]])
    if name == "ranpac":
        without.statistics["penalty"] = method.statistics["penalty"]
        without.solve()
    mask = method.subtract(ImageSet.of(images, gone), features[gone])
    assert mask.tolist() == [True] * 5
    for key, expected in without.statistics.items():
        torch.testing.assert_close(method.statistics[key], expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(scores(method, features), scores(without, features), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", FROZEN)
def test_only_images_that_were_learned_are_subtracted(name: str, images: Images, features: Tensor) -> None:
    rows = everything(images)[:-2]  # without the class of the last two
    method = learned(name, images, features, [rows])
    asked = ImageSet.of(images, torch.tensor([3, len(rows), 3]))
    before = method.statistics["counts"].clone()
    assert method.subtract(asked, features[asked.rows]).tolist() == [True, False, False]
    assert (before - method.statistics["counts"]).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_the_methods_that_choose_a_penalty_on_images_say_so() -> None:
    made = {name: new_method(name).chooses_penalty for name in FROZEN}
    assert made == {"analytic": True, "multistage": False, "ranpac": True, "simplecil": False}
    assert not new_method("analytic", ratio=0.1).chooses_penalty


def test_analytic_chooses_its_ratio_in_the_first_task_and_keeps_it(images: Images, features: Tensor) -> None:
    of = [torch.nonzero(images.labels == label).flatten() for label in range(5)]
    method = learned("analytic", images, features, [torch.cat([of[0], of[3]])], ratio=0.0)
    chosen = float(method.statistics["ratio"])
    later = learned(
        "analytic", images, features, [torch.cat([of[0], of[3]]), of[2], torch.cat([of[1], of[4]])], ratio=0.0
    )
    assert float(later.statistics["ratio"]) == chosen
    assert later.measurements["ratio"] == chosen
    noise = torch.randn(features.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert float(learned("analytic", images, noise, [everything(images)], ratio=0.0).statistics["ratio"]) > chosen


def test_ranpac_keeps_its_penalty_in_a_task_of_one_class(images: Images, features: Tensor) -> None:
    of = [torch.nonzero(images.labels == label).flatten() for label in range(5)]
    first = learned("ranpac", images, features, [torch.cat(of[:3])])
    later = learned("ranpac", images, features, [torch.cat(of[:3]), of[3]])
    assert torch.equal(first.statistics["penalty"], later.statistics["penalty"])


def test_errors_of_penalties_are_the_same_from_either_side() -> None:
    random = torch.Generator().manual_seed(0)
    penalties = torch.tensor([1e-3, 1.0, 100.0], dtype=torch.float64)
    for n, d in ((30, 8), (8, 30)):
        x, y, held_x, held_y = (
            torch.randn(*shape, generator=random, dtype=torch.float64) for shape in ((n, d), (n, 3), (5, d), (5, 3))
        )
        direct = [(held_y - held_x @ solve(products(x), x.T @ y, float(one))).square().sum() for one in penalties]
        torch.testing.assert_close(squared_errors(x, y, held_x, held_y, penalties), torch.stack(direct))


def products(x: Tensor) -> Tensor:
    packed = torch.zeros(packed_length(x.shape[1]), dtype=torch.float64)
    add_products(packed, x)
    return packed


@pytest.mark.parametrize("d", [1, 7, 256, 600])
def test_packed_sums_are_solved_as_a_whole_matrix_is(d: int) -> None:
    random = torch.Generator().manual_seed(d)
    x, y = (torch.randn(90, columns, generator=random, dtype=torch.float64) for columns in (d, 3))
    packed, gram = products(x), x.T @ x
    assert len(packed) <= d * (d + 256) // 2 + 256**2
    assert trace(packed, d) == pytest.approx(float(gram.trace()), rel=1e-12)
    add_products(packed, x[:20], -1.0)
    gram -= x[:20].T @ x[:20]
    expected = torch.linalg.solve(gram + 0.5 * torch.eye(d, dtype=torch.float64), x.T @ y)
    torch.testing.assert_close(solve(packed, x.T @ y, 0.5), expected, rtol=1e-10, atol=1e-10)


def test_a_singular_matrix_is_solved() -> None:
    x = torch.randn(3, 300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert solve(products(x), x.T, 0.0).isfinite().all()


def test_the_options_are_those_of_the_papers() -> None:
    shared = {"features": "last", "stride": 8, "first_task": "frozen", "native_schedule": False}
    assert method_options("simplecil") == shared
    assert method_options("ranpac") == shared | {"projected": 10_000}
    assert method_options("analytic") == shared | {"power": 0.5, "ratio": 0.0}
    own = {"features": "stages", "random": 3000, "penalty": 0.3, "prior": 0.5}
    assert method_options("multistage") == shared | own
    fsa = {"first_task": "rotations", "stride": 4, "penalty": 0.1}
    assert method_options("multistage_fsa") == shared | own | fsa
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("simplecil", {"features": "first"}),
        ("multistage", {"penalty": 0.0}),
        ("multistage", {"prior": 2.0}),
        ("analytic", {"power": 1.5}),
        ("analytic", {"ratio": -1.0}),
        ("ranpac", {"projected": 0}),
    ]
    for name, options in wrong:
        with pytest.raises(EndocilError, match=f"method.{next(iter(options))} is"):
            new_method(name, **options)


def test_sums_that_no_memory_or_file_could_hold_are_refused_with_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("endocil.methods.ranpac.available_memory", lambda: 2 * 10**9)
    (problem,) = new_method("ranpac", projected=10_000).problems(5)
    assert "need 4.0 GB of memory, and 2.0 GB are free; lower method.projected (it is 10,000)" in problem
    monkeypatch.setattr("endocil.methods.ranpac.available_memory", lambda: None)
    assert new_method("ranpac", projected=10_000).problems(5) == []
    assert "would take 3.6 GB" in new_method("ranpac", projected=30_000).problems(5)[0]
    assert new_method("analytic").problems(100) == []
    assert "method.name=simplecil" in new_method("analytic").problems(10**5)[0]
