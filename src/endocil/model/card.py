"""The model card: what a model is, what it was tested on, what it holds and what it cannot do, in words.

`endocil show` prints it, `--card` writes it as Markdown or as a page. It is made from the model file alone: no network
is built, and no code that the file names is imported.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from endocil.html.markup import number, render_page
from endocil.io.terminal import aligned
from endocil.io.text_tables import markdown_text
from endocil.methods import method_title
from endocil.model import DISCLAIMER
from endocil.model.calibration import limits_of
from endocil.model.file import ModelFile
from endocil.model.kept_images import counts
from endocil.model.manifest import NOT_GATED, UNTESTED, Calibration, Manifest, Step
from endocil.model.out_of_distribution import MEASURED, score_name

USE = (
    "For research on learning new classes of endoscopic images, by people who can judge its results. It is no medical "
    "device: it was not tested for any clinical use, and no decision about a patient may rest on it."
)
TITLES = ("when", "by", "made from", "what")  # of the history
METRICS = {"acc_last": "accuracy", "f1_last": "macro F1", "acc_avg": "accuracy, mean over the tasks"}


@dataclass(frozen=True)
class Section:
    """Facts by name, a table, or both; `lines` are paragraphs before them."""

    title: str
    lines: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    titles: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    numeric_from: int = 1  # columns of the table that are numbers

    @property
    def id(self) -> str:
        return self.title.lower().replace(" ", "-")


@dataclass(frozen=True)
class Card:
    title: str
    sections: tuple[Section, ...]

    def text(self) -> str:
        """For a terminal."""
        lines = [self.title]
        for section in self.sections:
            lines += ["", section.title, *(f"  {line}" for line in section.lines)]
            width = max((len(name) for name, _ in section.facts), default=0)
            lines += [f"  {name.ljust(width)}  {value}" for name, value in section.facts]
            if section.rows:
                numbers = range(section.numeric_from, len(section.titles))
                lines += [f"  {row}" for row in aligned([section.titles, *section.rows], numbers).split("\n")]
        return "\n".join(lines)

    def markdown(self) -> str:
        lines = [f"# {markdown_text(self.title)}", "", f"**{DISCLAIMER}**"]
        for section in self.sections:
            lines += ["", f"## {section.title}"]
            for line in section.lines:
                lines += ["", markdown_text(line)]
            if section.facts:
                lines += ["", *(f"- **{name}:** {markdown_text(value)}" for name, value in section.facts)]
            if section.rows:
                sides = ["---:" if j >= section.numeric_from else "---" for j in range(len(section.titles))]
                table = [section.titles, sides, *([markdown_text(cell) for cell in row] for row in section.rows)]
                lines += ["", *(f"| {' | '.join(row)} |" for row in table)]
        return "\n".join(lines) + "\n"

    def page(self) -> str:
        """One HTML page: opens offline, loads nothing, runs no script."""
        return render_page(
            "endocil.model",
            title=self.title,
            disclaimer=DISCLAIMER,
            navigation=[(section.id, section.title) for section in self.sections],
            sections=self.sections,
        )


def card_of(file: ModelFile) -> Card:
    """The card of a model file that was read."""
    manifest, gate = file.manifest, file.manifest.gate
    ungated = (f"Gate: {NOT_GATED} (endocil compare --rules --keep).",)
    sections = (
        Section("Use", (USE, *(f"{note[0].upper()}{note[1:]}." for note in limits_of(manifest, file.held_out)))),
        _identity(file),
        Section("Release", ungated if gate is None else (f"Gate: {gate.words}.", gate.line)),
        _results(manifest),
        _classes(file),
        _probabilities(manifest.calibration, score_name(file.spread)),
        _memory(file),
        Section("History", titles=TITLES, rows=tuple(map(_step, manifest.history)), numeric_from=len(TITLES)),
    )
    return Card(f"{manifest.title} ({file.digest[:8]})" if file.digest else manifest.title, sections)


def _identity(file: ModelFile) -> Section:
    manifest, settings, seen = file.manifest, file.settings, file.manifest.preprocessing
    frame = ", black frame cut off" if seen.crop_frame else ""
    fit = ", in proportion on black" if seen.fit == "pad" else ""
    facts = (
        ("name", manifest.title),
        ("sha256", file.digest or "not saved yet"),
        ("made", f"{manifest.history[-1].made}, by endocil {manifest.history[-1].endocil}"),
        ("method", method_title(settings.method.name)),
        ("backbone", f"{settings.network.backbone}, started from {settings.network.weights or 'random values'}"),
        ("input", f"{seen.size} x {seen.size} pixels{fit}{frame}"),
        (
            "learned",
            f"{len(manifest.classes)} classes in {len(manifest.increments)} task{'s' * (len(manifest.increments) > 1)}",
        ),
        ("licence", manifest.terms.licence or "not stated"),
        ("consent", manifest.terms.consent or "not stated"),
    )
    return Section("Model", facts=facts)


def _results(manifest: Manifest) -> Section:
    if manifest.metrics is None and manifest.gate is not None:
        return Section("Results", ("Measured by its release gate alone (see Release).",))
    if manifest.metrics is None:
        return Section("Results", (f"{UNTESTED[0].upper()}{UNTESTED[1:]}.",))
    found = manifest.metrics
    rows = []
    for key, name in METRICS.items():
        cells = [_percent(head.get(key)) for head in found["heads"].values()]
        rows.append((name, *cells))
    heads = tuple(f"{head.replace('_', '-')} head" for head in found["heads"])
    line = f"On {found['images']:,} {found['part']} images; percent with {100 * found['level']:g} % intervals."
    return Section("Results", (line,), titles=("", *heads), rows=tuple(rows))


def _percent(figure: dict[str, Any] | None) -> str:
    if not figure or figure["value"] is None:
        return number(None)
    return f"{number(figure['value'])} ({number(figure['low'])} to {number(figure['high'])})"


def _classes(file: ModelFile) -> Section:
    manifest = file.manifest
    exemplars, held_out = (
        Counter(one.class_name for one in kept.provenance) for kept in (file.exemplars, file.held_out)
    )
    heads = manifest.metrics["heads"] if manifest.metrics else {}
    recalls = (heads.get("softmax") or {}).get("recall", {})
    rows = [
        (one.name, f"{one.task + 1}", f"{one.images:,}", f"{exemplars[one.name]:,}", f"{held_out[one.name]:,}")
        + ((_percent(recalls.get(one.name)),) if recalls else ())
        for one in manifest.classes
    ]
    titles = ("class", "task", "images learned", "exemplars", "held out", *(("recall, %",) if recalls else ()))
    return Section("Classes", titles=titles, rows=tuple(rows))


def _probabilities(fitted: Calibration | None, score: str) -> Section:
    title = "Probabilities and new findings"
    if fitted is None:
        return Section(title, ("Not calibrated: probabilities are overconfident, and no image is flagged.",))
    facts = [
        ("calibrated", f"on {fitted.images:,} held-out images" if fitted.improved else "no, the temperature stays 1"),
        (
            "calibration error",
            f"{100 * fitted.error_before:.1f} % before, {100 * fitted.error:.1f} % after (cross-fitted)",
        ),
    ]
    if fitted.ood_threshold is not None:
        rate = f"at most {100 * fitted.ood_rate:g} % of images of learned classes are flagged"
        facts.append(("out of distribution", f"{rate} (score: {score})"))
        facts.append(("new findings", f"{MEASURED[score]}. The flag is no safeguard"))
    return Section(title, facts=tuple(facts))


def _memory(file: ModelFile) -> Section:
    kept = (*file.exemplars.provenance, *file.held_out.provenance)
    if not kept:
        return Section("Images inside", ("None.",))
    facts = [("images", f"{len(file.exemplars):,} exemplars, {len(file.held_out):,} held out for calibration")]
    facts += [(f"by {field}", counts(kept, field)) for field in ("group", "source", "licence", "consent")]
    return Section("Images inside", ("These may be images of patients.",), facts=tuple(facts))


def _step(step: Step) -> tuple[str, ...]:
    added = ", ".join(f"{name} {n:,}" for name, n in step.added.items())
    removed = ", ".join(f"{n:,} by {field}" for field, n in step.removed.items())
    said = (added, f"removed {removed}" if removed else "", " ".join(step.changes), step.note)
    return step.made[:16].replace("T", " "), step.by, (step.parent or "")[:8], "; ".join(filter(None, said))
