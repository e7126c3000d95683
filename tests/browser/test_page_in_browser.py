"""The page in a browser: every control works, by mouse and by keyboard, on paper, on a phone, and without a script."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow
Opened = Callable[..., "Page"]
# Of a group inside a picture, checkVisibility knows nothing.
SHOWN = "all => all.map(one => one.checkVisibility() && getComputedStyle(one).display !== 'none')"
TEXTS = "all => all.map(one => one.textContent)"
CONTRASTS = """() => {
  const numbers = text => {
    const found = text.match(/[\\d.]+/g).map(Number);
    return text.startsWith("color(") ? [...found.slice(0, 3).map(v => 255 * v), found[3]] : found;
  };
  const light = colour => {
    const [r, g, b] = colour.map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = element => {
    for (let one = element; one; one = one.parentElement) {
      const found = numbers(getComputedStyle(one).backgroundColor);
      if (found[3] === undefined || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest("script, title")) continue;
    const style = getComputedStyle(element);
    const ink = light(numbers(element.closest("svg") ? style.fill : style.color).slice(0, 3));
    const grounds = [ground(element)];
    if (element.closest("td.bar")) {
      const probe = document.createElement("i");
      document.body.append(probe);
      probe.className = "probe";
      probe.style.color = "var(--bar)";
      grounds.push(numbers(getComputedStyle(probe).color));
      probe.remove();
    }
    for (const one of grounds) {
      const under = light(one.slice(0, 3));
      const contrast = (Math.max(ink, under) + .05) / (Math.min(ink, under) + .05);
      if (contrast < 4.5) poor.push(`${contrast.toFixed(2)} ${element.tagName} ${walker.currentNode.data.trim()}`);
    }
  }
  return poor;
}"""


def _metrics(runs: dict[str, Path], method: str) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((runs[method] / "metrics.json").read_text())
    return metrics


def _open_all(page: "Page") -> None:
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")


def test_the_page_opens_and_says_what_was_run(opened: Opened, many: Path) -> None:
    page = opened(many)
    assert page.title() == "Four methods"
    assert "Four methods (Finetune, iCaRL, EndoCIL and JointTrain) learned the 14 classes" in page.inner_text(".lead")
    assert "not significant" in page.inner_text("#noise") or "worse" in page.inner_text("#noise")


def test_a_line_can_be_switched_off_and_on(opened: Opened, many: Path) -> None:
    page = opened(many)
    lines, rows = page.locator("#accuracy g[data-line]"), page.locator("#accuracy tbody tr")
    page.get_by_role("checkbox", name="iCaRL").uncheck()
    for parts in (lines, rows):
        assert parts.evaluate_all(SHOWN) == [True, False, True, True]
    page.get_by_role("button", name="None").click()
    for parts in (lines, rows):
        assert parts.evaluate_all(SHOWN) == [False] * 4
    page.get_by_role("button", name="All", exact=True).click()
    assert lines.evaluate_all(SHOWN) == [True] * 4
    assert page.locator("#accuracy input").evaluate_all("all => all.every(one => one.checked)")


def test_a_line_stands_out_while_its_name_is_pointed_at(opened: Opened, many: Path) -> None:
    page = opened(many)
    page.locator("#accuracy label").nth(2).hover()
    faint = page.locator("#accuracy g[data-line]").evaluate_all("all => all.map(one => one.matches('.faint'))")
    assert faint == [True, True, False, True]


def test_one_method_is_shown_at_a_time_and_the_best_first(opened: Opened, many: Path) -> None:
    page = opened(many)
    sections = page.locator(".method")
    assert page.locator("#method-choice option:checked").inner_text() == "EndoCIL"
    assert sections.evaluate_all(SHOWN) == [False, False, True, False]
    page.select_option("#method-choice", label="JointTrain")
    assert sections.evaluate_all(SHOWN) == [False, False, False, True]
    assert page.locator("#task-choice").is_disabled()
    page.select_option("#method-choice", label="all methods")
    assert sections.evaluate_all(SHOWN) == [True] * 4
    page.get_by_role("link", name="Finetune").click()
    page.locator("#method-2").wait_for(state="hidden")
    assert sections.evaluate_all(SHOWN) == [True, False, False, False]
    page.select_option("#method-choice", label="iCaRL")
    page.get_by_role("link", name="Finetune").click()  # the same address as before
    page.locator("#method-0").wait_for(state="visible")
    assert sections.evaluate_all(SHOWN) == [True, False, False, False]


def test_the_slider_shows_the_confusion_and_the_classes_after_each_task(
    opened: Opened, many: Path, runs: dict[str, Path]
) -> None:
    metrics = _metrics(runs, "endocil")
    page = opened(many)
    confusion, classes = (page.locator(f'#method-2 [data-view="{view}"]') for view in ("confusion", "classes"))
    at_first = confusion.inner_html(), classes.inner_html()
    slider = page.get_by_label("After task")
    slider.focus()
    for t in (3, 2, 1, 0):
        page.keyboard.press("ArrowLeft")
        counts = metrics["softmax"]["confusions"][t]
        seen = len(counts)
        for i in range(len(metrics["classes"])):
            cells = confusion.locator("tbody tr").nth(i).locator("td").evaluate_all(TEXTS)
            percent = [100 * n / sum(counts[i]) for n in counts[i]] if i < seen else []
            told = ["·" if value == 0 else f"{round(value)}" for value in percent]
            assert cells == told + [""] * (len(cells) - len(told))
        rows = classes.locator("tbody tr").evaluate_all("all => all.map(row => row.children[2].textContent)")
        recalls = list(metrics["softmax"]["per_class_over_tasks"][t].values())
        assert rows == [f"{value:.1f}" for value in recalls] + ["\N{EN DASH}"] * (len(rows) - seen)
        assert f"after task {t + 1}" in confusion.locator("caption").inner_text()
        new = metrics["classes"][sum(metrics["task_sizes"][:t]) : seen]
        said = f"After task {t + 1} of 5: {seen} of 14 classes learned; new: {', '.join(new)}"
        assert page.inner_text("#task-text") == f"{said}."
        assert slider.get_attribute("aria-valuetext") == said
        marked = page.locator('#method-2 [data-view="recall"] thead .now').evaluate_all(TEXTS)
        assert marked == [f"task {t + 1}"]
    page.keyboard.press("End")
    now = confusion.inner_html(), classes.inner_html()
    assert [text.replace(' class=""', "") for text in now] == list(at_first)


def test_the_page_of_one_run_has_a_slider_and_no_choice_of_methods(opened: Opened, one: Path) -> None:
    page = opened(one)
    assert page.locator("#method-choice").count() == page.locator("#accuracy input").count() == 0
    page.get_by_label("After task").focus()
    page.keyboard.press("Home")
    assert "After task 1 of 5: 4 of 14 classes learned" in page.inner_text("#task-text")


def test_light_and_dark_follow_the_system_until_chosen_and_the_choice_is_remembered(opened: Opened, many: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    page = opened(many, color_scheme="dark")
    dark = page.evaluate(ground)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(ground)
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(20, 23, 28)")
    page.get_by_role("button", name="Change to dark colours").click()
    assert page.evaluate(ground) == dark
    page.reload()
    assert page.evaluate(ground) == dark
    page.get_by_role("button", name="Change to light colours").click()
    assert page.evaluate(ground) == light


@pytest.mark.parametrize("kind", ["one", "many"])
def test_a_phone_need_not_scroll_sideways(opened: Opened, kind: str, request: pytest.FixtureRequest) -> None:
    page = opened(request.getfixturevalue(kind), width=390, has_touch=True)
    _open_all(page)
    if kind == "many":
        page.select_option("#method-choice", label="all methods")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    beyond = page.evaluate(
        "[...document.querySelectorAll('body *')].filter(one => !one.closest('.scroll, .skip, svg')"
        " && one.getBoundingClientRect().right > 391).map(one => one.outerHTML.slice(0, 80))"
    )
    assert beyond == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(opened: Opened, many: Path, scheme: str) -> None:
    page = opened(many, color_scheme=scheme)
    _open_all(page)
    page.select_option("#method-choice", label="all methods")
    page.get_by_label("After task").focus()
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(CONTRASTS) == []


def test_on_paper_everything_is_open_light_and_after_the_last_task(opened: Opened, many: Path) -> None:
    page = opened(many, color_scheme="dark")
    page.get_by_label("After task").focus()
    page.keyboard.press("Home")
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator(".method").evaluate_all(SHOWN) == [True] * 4
    assert page.locator("details:not([open])").count() == 0
    assert (
        page.locator(".controls, nav, button, #accuracy input").evaluate_all(
            "all => all.filter(o => o.checkVisibility())"
        )
        == []
    )
    assert page.locator(".when").evaluate_all("all => all.every(o => o.textContent === 'after the last task')")
    assert page.evaluate(CONTRASTS) == []
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.locator("details[open]").count() == 0
    assert page.inner_text("#task-text").startswith("After task 1 ")
    assert page.pdf().startswith(b"%PDF")


def test_on_paper_every_method_is_there_whatever_was_switched_off(opened: Opened, many: Path) -> None:
    page = opened(many)
    page.get_by_role("button", name="None").click()
    names, lines = page.locator("#accuracy .switch li"), page.locator("#accuracy g[data-line]")
    assert lines.evaluate_all(SHOWN) == [False] * 4
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert names.evaluate_all(SHOWN) == [True] * 4
    assert names.evaluate_all("all => all.map(o => getComputedStyle(o).textDecorationLine)") == ["none"] * 4
    assert lines.evaluate_all(SHOWN) == [True] * 4
    assert page.locator("#accuracy .numbers tbody tr").evaluate_all(SHOWN) == [True] * 4


def test_where_exemplars_come_from_can_be_read_in_few_lines(opened: Opened, longnamed: Path) -> None:
    """A name of 40 letters has two lines on a desktop and no more than four on a phone."""
    for width, lines in ((1280, 2), (390, 4)):
        page = opened(longnamed, width=width)
        _open_all(page)
        high = page.locator("#gallery td.name").evaluate_all(
            "all => all.map(o => { const s = getComputedStyle(o); return (o.clientHeight - parseFloat(s.paddingTop)"
            " - parseFloat(s.paddingBottom)) / parseFloat(s.lineHeight); })"
        )
        assert max(high) < lines + 0.5
        narrow = page.locator("#gallery tbody th").evaluate_all("all => all.map(o => o.offsetWidth)")
        assert max(narrow) < 80


def test_paper_has_pictures_of_several_runs_without_their_names(opened: Opened, many: Path, longnamed: Path) -> None:
    for file, told in ((many, False), (longnamed, True)):
        page = opened(file)
        page.emulate_media(media="print")
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert set(page.locator("#gallery img").evaluate_all(SHOWN)) == {True}
        assert set(page.locator("#gallery table").evaluate_all(SHOWN)) == {told}


def test_without_a_script_every_method_is_there_after_the_last_task(opened: Opened, many: Path) -> None:
    page = opened(many, java_script_enabled=False)
    assert page.locator(".method:visible").count() == 4
    assert page.locator("button:visible, input:visible, select:visible, output:visible").count() == 0
    assert page.locator("#accuracy g[data-line]").count() == 4
    assert page.locator(".legend:visible").first.inner_text().split() == ["Finetune", "iCaRL", "EndoCIL", "JointTrain"]
    assert "after the last task" in page.locator("#method-0 [data-view=confusion] caption").inner_text()
    assert not page.locator("#settings table").first.is_visible()
    page.emulate_media(media="print")
    assert page.locator("#settings table").first.is_visible()  # paper cannot be unfolded


def test_everything_can_be_reached_and_used_by_keyboard_alone(opened: Opened, many: Path) -> None:
    page = opened(many)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        found = page.evaluate(
            "() => { const one = document.activeElement, style = getComputedStyle(one);"
            " return [one.id || one.value || one.tagName, style.outlineStyle, parseFloat(style.outlineWidth)]; }"
        )
        assert found[1:] == ["solid", 3], f"no focus is seen on {found[0]}"
        reached.add(found[0])
        if found[0] == "0":  # the box of the first method
            page.keyboard.press("Space")
        if found[0] == "method-choice":
            page.keyboard.press("i")  # a list goes to what is typed
        if found[0] == "task-choice":
            page.keyboard.press("ArrowLeft")
            break
    assert {"0", "1", "2", "3", "all", "none", "SUMMARY", "DIV", "method-choice", "task-choice"} <= reached
    assert page.locator("#accuracy g[data-line]").evaluate_all(SHOWN) == [False, True, True, True]
    assert page.locator(".method").evaluate_all(SHOWN) == [False, True, False, False]
    assert page.inner_text("#task-text").startswith("After task 4 ")


def test_exemplars_tell_where_they_come_from(opened: Opened, many: Path) -> None:
    page = opened(many)
    page.get_by_text("EndoCIL, run endocil-0").click()
    page.get_by_text("Provenance of the exemplars of polyps").last.click()
    table = page.locator("#gallery table:visible")
    assert table.locator("thead th").all_inner_texts() == ["Choice", "Image", "Group", "Source"]
    assert table.locator("tbody tr").nth(1).locator("th, td").all_inner_texts() == [
        "2",
        "picture-1.jpg",
        "patient-7",
        "gastroscope",
    ]
    assert page.locator("#gallery img:visible").count() == 14 * 3
    sizes = page.locator("#gallery img").evaluate_all("all => all.map(one => one.naturalWidth)")
    assert set(sizes) == {64}


def test_only_the_page_s_own_script_may_run(browser: "Browser", many: Path, tmp_path: Path) -> None:
    """Its policy holds even where a name should ever slip through unescaped."""
    strange = tmp_path / "strange.html"
    text = many.read_text("utf-8")
    strange.write_text(text.replace("</main>", "<script>window.slipped = 1</script></main>"), "utf-8")
    page = browser.new_page()
    page.goto(strange.as_uri())
    assert page.evaluate("window.slipped") is None
    assert page.locator("#theme").is_visible()  # its own script ran
    page.close()
