"""Line charts: axes that fit their values, and lines that can be told apart."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from endocil.html.charts import Axis, Series, end_axis, interval_chart, line_chart, linear_axis, log_axis, sample


@pytest.mark.parametrize(("top", "high"), [(0.0, 1.0), (0.37, 0.4), (1.0, 1.0), (2.3, 2.5), (97.0, 100.0), (150, 150)])
def test_a_linear_axis_ends_at_a_round_number_above_all_values(top: float, high: float) -> None:
    axis = linear_axis("loss", [0.0, top])
    assert axis.low == 0.0
    assert axis.high == pytest.approx(high)
    assert 2 <= len(axis.ticks) <= 6


@pytest.mark.parametrize("last", [1, 2, 7, 30, 32, 113])
def test_an_axis_of_epochs_ends_at_the_last_one(last: int) -> None:
    axis = end_axis("epoch", float(last))
    assert axis.place(last) == 1.0
    places = [value for value, _ in axis.ticks]
    assert places == sorted(set(places))
    assert places[-1] == last
    assert 2 <= len(places) <= 8


def test_a_log_axis_spans_whole_powers_of_ten() -> None:
    axis = log_axis("rate", [0.1, 0.01, 0.002])
    assert [text for _, text in axis.ticks] == ["0.001", "0.01", "0.1"]
    assert axis.place(0.01) == pytest.approx(0.5)


def test_a_log_axis_of_one_value_still_has_a_length() -> None:
    axis = log_axis("rate", [0.1])
    assert axis.low < axis.high


def _chart(lines: list[Series]) -> ElementTree.Element:
    axis = Axis("x", 0.0, 10.0, ((0.0, "0"), (10.0, "10")))
    return ElementTree.fromstring(line_chart(lines, axis, axis, title='a <"quoted"> title'))


def test_a_chart_is_well_formed_and_tells_its_content_in_words() -> None:
    chart = _chart([Series("<a>", (0.0, 10.0), (0.0, 10.0), 0)])
    assert chart.get("role") == "img"
    assert chart.get("aria-label") == 'a <"quoted"> title'
    assert [title.text for title in chart.iter("title")] == ["<a>: 0.0", "<a>: 10.0"]


def test_a_line_goes_through_its_points_and_stops_at_a_gap() -> None:
    chart = _chart([Series("a", (0.0, 2.0, 5.0, 10.0), (0.0, 10.0, None, 5.0), 0)])
    (line,) = [path for path in chart.iter("path") if path.get("class") == "line"]
    assert line.get("d") == "M56.0 256.0L144.8 10.0M500.0 133.0"


def test_boundaries_are_lines_with_their_names() -> None:
    axis = Axis("x", 0.0, 10.0, ((0.0, "0"), (10.0, "10")))
    boundaries = [(0.0, "task <1>"), (5.0, "")]
    chart = ElementTree.fromstring(line_chart([], axis, axis, title="", boundaries=boundaries))
    assert len([path for path in chart.iter("path") if path.get("class") == "boundary"]) == 2
    assert [text.text for text in chart.iter("text") if text.get("class") == "tick"] == ["task <1>"]


def test_a_stepped_line_holds_each_value_until_the_next() -> None:
    chart = _chart([Series("a", (0.0, 5.0, 10.0), (10.0, 10.0, 0.0), 0, steps=True)])
    (line,) = [path for path in chart.iter("path") if path.get("class") == "line"]
    assert line.get("d") == "M56.0 10.0H278.0V10.0H500.0V256.0"


def test_whiskers_stay_inside_the_chart() -> None:
    chart = _chart([Series("a", (5.0, 6.0), (9.0, 5.0), 0, (4.0, None))])
    (whisker,) = [path for path in chart.iter("path") if path.get("class") == "whisker"]
    assert whisker.get("d") == "M278.0 133.0V10.0"


def test_fourteen_lines_differ_without_their_colours() -> None:
    """Thirteen methods and FOSTER's student: no two share dash and marker."""
    without_colour = {re.sub(r'class="sample c\d"', "", sample(style)) for style in range(14)}
    assert len(without_colour) == 14
    assert not any("c0" in one or "c1" in one for one in without_colour)
    without_dash = {re.sub(r'stroke-dasharray="[^"]*" ', "", sample(style)) for style in range(14)}
    assert len(without_dash) == 14  # a method of one task is a point, and has no dash
    assert not any("dasharray" in one for one in without_dash)


def test_changes_stand_beside_what_may_be_lost() -> None:
    rows = [("<a>", -3.0, (-5.0, -1.0)), ("b" * 60, 2.0, (0.0, 4.0))]
    chart = ElementTree.fromstring(interval_chart(rows, {"<a>": 2.0}, title='"t"', label="points"))
    assert chart.get("aria-label") == '"t"'
    assert next(chart.iter("title")).text == "<a>: -3.0 (-5.0 to -1.0)"
    assert len([path for path in chart.iter("path") if path.get("class") == "limit"]) == 1
    assert "b" * 47 + "…" in [text.text for text in chart.iter("text")]
