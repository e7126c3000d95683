"""`endocil show` and the model card tell what a model is, and names in it stay names."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from commands import endocil
from untrained import CLASSES, VERDICT, untrained, write_untrained

from endocil.learning.memory import Provenance
from endocil.model.card import card_of
from endocil.model.file import ModelFile, read_model_file
from endocil.model.kept_images import counts
from endocil.model.manifest import GateVerdict
from endocil.model.model import Model


def test_show_tells_classes_results_gate_memory_terms_and_history(tiny_model: Path) -> None:
    content = read_model_file(tiny_model)
    shown = endocil("show", tiny_model).stdout
    for name in content.classes:
        assert name in shown
    for words in ("CC BY 4.0", "accuracy", "Gate: not compared", "exemplars", "sha256", content.digest, "History"):
        assert words in shown
    assert f"{content.manifest.metrics['heads']['softmax']['acc_last']['value']:.1f}" in shown  # type: ignore[index]


def test_a_run_folder_can_be_shown(tiny_run: Path) -> None:
    assert "run, version 1" in endocil("show", tiny_run).stdout


def test_the_card_is_written_as_markdown_and_as_a_page_and_never_over_a_file(tiny_model: Path, tmp_path: Path) -> None:
    for name in ("card.md", "card.html"):
        assert endocil("show", tiny_model, "--card", tmp_path / name).returncode == 0
        assert "CC BY 4.0" in (tmp_path / name).read_text()
        again = endocil("show", tiny_model, "--card", tmp_path / name)
        assert again.returncode == 1
        assert "--force" in again.stderr
    assert "expected a name that ends in .md or .html" in endocil("show", tiny_model, "--card", tmp_path / "x").stderr


def test_names_of_classes_stay_names_in_markdown_and_html() -> None:
    card = card_of(untrained())
    assert "&lt;b&gt;cecum&lt;/b&gt;" in card.page()
    assert "<b>cecum" not in card.page()
    assert "\\<b>cecum" in card.markdown()
    assert all(name in card.text() for name in CLASSES)


def test_a_card_in_markdown_has_neither_links_nor_text_that_turns() -> None:
    content = untrained()
    step = content.manifest.history[-1].model_copy(update={"note": "https://evil.example po\u202elyp"})
    text = card_of(replace(content, manifest=content.manifest.model_copy(update={"history": (step,)}))).markdown()
    assert r"https\://evil.example po\\u202elyp" in text
    assert "\u202e" not in text


def gated(content: ModelFile, verdict: GateVerdict = VERDICT) -> ModelFile:
    return replace(content, manifest=content.manifest.model_copy(update={"gate": verdict}))


def test_the_verdict_of_the_gate_is_on_the_card() -> None:
    text = card_of(gated(untrained())).text()
    assert "Gate: passed on 2026-02-03 by gate.toml (cccccccc), on 120 images of test-images" in text
    assert "in place of first, version 1 (bbbbbbbb)" in text
    assert "Measured by its release gate alone" in text
    assert "Not tested" not in text


def test_groups_of_one_image_each_are_counted_and_not_listed() -> None:
    patients = [Provenance(f"{i}.png", "polyp", i, 0, f"patient-{i}", "a") for i in range(12)]
    assert counts(patients, "group") == "12 different ones, one image each"
    assert counts(patients, "source") == "a 12"
    assert counts([*patients, patients[3]], "group").startswith("patient-3 2, patient-0 1")
    assert counts(patients[:2], "group") == "patient-0 1, patient-1 1"


def test_one_task_is_told_as_one() -> None:
    assert "5 classes in 1 task\n" in card_of(untrained("joint")).text()


def test_a_model_is_one_line(tmp_path: Path) -> None:
    assert repr(Model.create(size=32)) == "<Model 'model': endocil on resnet18, 32 px, nothing learned yet>"
    model = Model.load(write_untrained(tmp_path / "m.endocil"))
    assert repr(model) == "<Model 'untrained' version 1: icarl on resnet18, 32 px, 5 classes in 3 tasks, 15 exemplars>"
    assert repr(Model.from_file(gated(untrained()))).endswith("15 exemplars, gate passed>")


def test_what_the_backbone_started_from_is_still_told_after_the_model_has_learned_on(tmp_path: Path) -> None:
    values = {
        "data": {"size": 32},
        "network": {"backbone": "efficientnet-lite0", "weights": "imagenet"},
        "method": {"name": "simplecil"},
    }
    model = Model.create(values)
    pixels = list(np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8))
    model.learn(pixels, ["a", "a", "b", "b"], validation=0.0)
    model.save(tmp_path / "1.endocil")
    loaded = Model.load(tmp_path / "1.endocil")
    loaded.learn(pixels[:2], ["c", "c"], validation=0.0)
    assert "efficientnet-lite0, started from imagenet" in card_of(loaded.file()).text()
