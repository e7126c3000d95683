"""What stands in a figure: the numbers of the runs, worked out by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle
from present import present
from records import CLASSES, EPOCHS, keep_features, predictions_of, settings_of, write_run

from endocil.components.selection import select_by_mmd, squared_mmd
from endocil.datasets.public.facts import PUBLIC
from endocil.metrics.metrics import accuracy as accuracy_of
from endocil.metrics.statistics import expected_error, reliability
from endocil.reports.figures import class_images, curves, matrices
from endocil.reports.figures.fixed_features import fixed_features, prefix_mmd2, race_of
from endocil.reports.figures.kinds import draw_all
from endocil.reports.figures.material import Material, families
from endocil.runs.records import read_run


def material(*folders: Path) -> Material:
    return Material([read_run(folder) for folder in folders])


def reason(kind: str, given: Material, folder: Path) -> str:
    """Why a figure is not drawn."""
    (drawn,) = draw_all(given, folder, [kind], ["png"], 50)
    assert not drawn.files
    return drawn.reason


def test_a_line_is_the_mean_over_seeds_with_their_standard_deviation() -> None:
    curve = curves.curve_of("x", 0, [[10.0, 20.0], [14.0, 20.0]])
    assert curve.mean.tolist() == [12.0, 20.0]
    assert curve.deviation is not None
    assert curve.deviation.tolist() == pytest.approx([np.sqrt(8.0), 0.0])
    assert curves.curve_of("x", 0, [[10.0, 20.0]]).deviation is None


def test_accuracy_has_a_line_for_each_experiment_and_a_level_for_what_sees_all_classes(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(seed), settings_of(seed)) for seed in (0, 1)]
    runs.append(write_run(tmp_path / "all", settings_of(method__name="joint"), sizes=(4,)))
    given = material(*runs)
    (figure,) = [figure for _, figure in curves.draw_accuracy(given)]
    (axis,) = figure.axes
    line, level = axis.get_lines()
    expected = np.mean([[accuracy_of(p, "softmax") for p in predictions_of(seed)] for seed in (0, 1)], axis=0)
    assert np.asarray(line.get_ydata()) == pytest.approx(expected)
    assert axis.get_title() == "small"
    assert np.asarray(level.get_ydata())[0] == pytest.approx(accuracy_of(predictions_of(0, (4,))[0], "softmax"))
    assert len(axis.collections) == 1  # the band


def test_runs_on_other_data_or_with_another_memory_have_a_panel_of_their_own(tmp_path: Path) -> None:
    given = material(
        write_run(tmp_path / "a"),
        write_run(tmp_path / "b", settings_of(data__root="/images/other")),
        write_run(tmp_path / "c", settings_of(memory__per_class=5)),
    )
    assert list(given.panels) == ["small, 3 per class", "other, 3 per class", "small, 5 per class"]


@pytest.mark.parametrize(("name", "sizes"), [("hyper-kvasir", (4, 3, 3, 3, 3)), ("capsule-vision", (3, 2, 2, 2))])
def test_published_counts_are_those_of_the_preset(name: str, sizes: tuple[int, ...]) -> None:
    """16 and 9 classes are left, as the paper's table of splits has them."""
    published = class_images.published(PUBLIC[name])
    assert tuple(published.task_sizes) == sizes
    assert len(published.classes) == sum(sizes)
    assert min(published.parts["all"]) >= 100
    assert published.parts["all"] == [PUBLIC[name].classes[each] for each in published.classes]


def test_counts_of_a_run_come_from_its_split(tmp_path: Path) -> None:
    counts = class_images.of_run("small", read_run(write_run(tmp_path / "run")))
    assert counts.parts == {"train": [20, 30, 40, 50], "test": [10, 10, 10, 10]}
    (axis,) = class_images.counts_figure([counts]).axes
    assert [bar.get_width() for bar in axis.patches if isinstance(bar, Rectangle)] == [20, 30, 40, 50, 10, 10, 10, 10]
    assert [label.get_text() for label in axis.get_yticklabels()] == list(CLASSES)


def test_loss_maps_show_the_last_task_of_two_runs_that_differ_in_the_loss_alone(tmp_path: Path) -> None:
    one = write_run(tmp_path / "ce", settings_of())
    other = write_run(tmp_path / "prcbl", settings_of(method__loss="prior_regularized"), level=0.5)
    ((_, figure),) = matrices.draw_losses(material(one, other))
    maps = [axis.get_images()[0].get_array() for axis in figure.axes[:2]]
    expected = np.array([[(c + 1) / (e + 1) for c in range(4)] for e in range(EPOCHS)])
    assert np.asarray(maps[0]) == pytest.approx(expected)
    assert np.asarray(maps[1]) == pytest.approx(expected / 2)
    assert [axis.get_title() for axis in figure.axes[:2]] == ["CE", "PRCBL"]
    assert figure.axes[0].get_images()[0].get_clim() == figure.axes[1].get_images()[0].get_clim() == (1 / 6, 4.0)


def test_loss_maps_of_runs_that_differ_in_more_are_not_drawn(tmp_path: Path) -> None:
    one = write_run(tmp_path / "ce", settings_of())
    other = write_run(tmp_path / "prcbl", settings_of(method__loss="prior_regularized", memory__select="mmd"))
    assert "method.loss=cross_entropy" in reason("loss-map", material(one, other), tmp_path)
    (members,) = material(one, other).panels.values()
    assert [len(family) for family in families(members, {"method.loss"})] == [1, 1]
    assert [len(family) for family in families(members, {"method.loss", "memory.select"})] == [2]


def test_gradient_norms_are_those_of_the_last_task_with_the_components_named(tmp_path: Path) -> None:
    given = [
        write_run(tmp_path / "cfg", settings_of()),
        write_run(tmp_path / "cfg1", settings_of(1), level=3.0),
        write_run(tmp_path / "both", settings_of(method__loss="prior_regularized"), level=0.5),
    ]
    ((suffix, figure),) = curves.draw_gradients(material(*given))
    alone, both, change = figure.axes[0].get_lines()
    assert suffix == "mean"
    assert (alone.get_label(), both.get_label()) == ("CFG", "CFG + PRCBL")
    assert np.asarray(alone.get_ydata()) == pytest.approx([42.0, 44.0, 46.0])  # mean of x 1 and x 3
    assert np.asarray(both.get_ydata()) == pytest.approx([10.5, 11.0, 11.5])
    assert np.asarray(change.get_xdata())[0] == 1.5  # the rate falls before epoch 2
    assert "method.gradients=calibrated" in reason("gradient-norm", material(*given[:2]), tmp_path)


def test_gamma_runs_over_the_epochs_of_all_tasks(tmp_path: Path) -> None:
    ((_, figure),) = curves.draw_gamma(material(write_run(tmp_path / "run")))
    line, *marks = figure.axes[0].get_lines()
    assert np.asarray(line.get_ydata()).tolist() == [0.0] * 3 + [0.5] * 3 + [1.0] * 3
    assert np.asarray(line.get_xdata()) == pytest.approx([t + e / 3 for t in range(1, 4) for e in range(3)])
    assert [np.asarray(mark.get_xdata())[0] for mark in marks] == [2.0, 3.0]


def test_weight_norms_are_means_over_the_classes_of_each_task_from_its_first_epoch_on(tmp_path: Path) -> None:
    ((_, figure),) = curves.draw_weight_norms(material(write_run(tmp_path / "run")))
    lines = [np.asarray(line.get_ydata()) for line in figure.axes[0].get_lines()[:3]]
    assert lines[0].tolist() == [1.5] * 9
    assert np.isnan(lines[1][:3]).all()
    assert lines[1][3:].tolist() == [3.0] * 6
    assert np.isnan(lines[2][:6]).all()


def test_confusions_add_up_over_seeds_and_are_shares_of_each_class(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(seed), settings_of(seed)) for seed in (0, 1)]
    ((group,),) = material(*runs).panels.values()
    shares = matrices.confusion_shares(group)
    counted = sum(np.array(run.metrics["softmax"]["confusions"][1]) for run in group.results)
    assert shares[1][:3, :3] == pytest.approx(100.0 * counted / 20)  # 10 images of each class in each seed
    assert np.isnan(shares[1][3]).all()
    assert np.isnan(shares[1][:, 3]).all()


def test_recalls_and_forgetting_are_those_of_the_metrics(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    ((group,),) = material(run).panels.values()
    metrics = group.first.metrics["softmax"]
    recalls = matrices.recalls_over_tasks(group)
    assert recalls[0].tolist() == [after["cecum"] for after in metrics["per_class_over_tasks"]]
    assert np.isnan(recalls[3, :2]).all()
    ((_, figure),) = matrices.draw_forgetting(material(run))
    shown = np.ma.filled(present(figure.axes[0].get_images()[0].get_array()), np.nan)
    assert shown[2].tolist() == metrics["task_accuracy"][2]
    assert np.isnan(shown[0, 1:]).all()


def test_calibration_is_counted_in_ten_bins() -> None:
    assert curves.BINS == 10
    bins = reliability(np.array([0.95, 1.0, 0.52, 0.5]), np.array([True, False, True, False]), curves.BINS)
    assert [(one.low, one.high, one.images) for one in bins] == [(50.0, 60.0, 2), (90.0, 100.0, 2)]
    assert [one.right for one in bins] == [50.0, 50.0]
    assert [one.confidence for one in bins] == pytest.approx([51.0, 97.5])
    assert expected_error(bins) == pytest.approx(100 * (2 * 0.01 + 2 * 0.475) / 4)


def test_confidence_is_the_softmax_of_the_largest_logit() -> None:
    sure, right = curves.confidences(np.array([[0.0, np.log(3.0)], [1000.0, 0.0]], np.float32), np.array([1, 1]))
    assert sure == pytest.approx([0.75, 1.0])
    assert right.tolist() == [True, False]


def test_growth_adds_the_seconds_of_a_task(tmp_path: Path) -> None:
    ((_, figure),) = curves.draw_growth(material(write_run(tmp_path / "run")))
    shown = [np.asarray(axis.get_lines()[0].get_ydata()).tolist() for axis in figure.axes]
    assert shown == [[6.0] * 3, [0.0, 6.0, 9.0], [1.0, 2.0, 3.0], [50.0] * 3]


def test_mmd_of_prefixes_is_what_the_selection_measures() -> None:
    features = torch.nn.functional.normalize(torch.randn(40, 5, generator=torch.Generator().manual_seed(1)))
    chosen = select_by_mmd(features, 12)
    assert chosen.mmd2 is not None
    assert prefix_mmd2(features, chosen.indices) == pytest.approx(chosen.mmd2.numpy(), abs=1e-9)
    any_rows = torch.tensor([3, 17, 5, 21])
    found = prefix_mmd2(features, any_rows, {"kernels": 3})
    expected = [squared_mmd(features, any_rows[:n], kernels=3) for n in range(1, 5)]
    assert found == pytest.approx(expected, abs=1e-9)


def test_the_race_of_selectors_is_run_on_kept_features_with_the_bound_of_the_paper(tmp_path: Path) -> None:
    (fixed,) = fixed_features(material(keep_features(write_run(tmp_path / "run"))))
    assert [(one.name, len(one.features)) for one in fixed.classes] == [("cecum", 30), ("polyps", 24)]
    assert fixed.quota == 3
    race = race_of(fixed, fixed.classes[0])
    assert set(race.lines) == {"mmd", "mean", "random", "entropy", "distance"}
    assert all(len(line) == 6 for line in race.lines.values())  # twice the quota
    assert race.lines["mmd"][-1] == min(line[-1] for line in race.lines.values())
    assert race.bound[0] == pytest.approx(10.0)  # 2 K (1 + ln 1) / 1 with five kernels


def test_a_first_task_of_one_class_has_no_boundary_to_be_near_to(tmp_path: Path) -> None:
    run = keep_features(write_run(tmp_path / "run", sizes=(1, 2, 1)), counts=(30,))
    (fixed,) = fixed_features(material(run))
    assert set(race_of(fixed, fixed.classes[0]).lines) == {"mmd", "mean", "random", "entropy"}
