"""The page, put together and written."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib import resources
from pathlib import Path

from ownpace.core.contract.errors import InputError
from ownpace.core.version import __version__
from ownpace.core.whole_file import write_text
from ownpace.report.colours import colour_of
from ownpace.report.digest import RunDigest
from ownpace.report.page import chart_data
from ownpace.report.page.bars import histogram, time_bars
from ownpace.report.page.tables import differences, summary_table, swatch, whole_settings
from ownpace.report.page.verdict import verdict
from ownpace.report.page.words import duration
from ownpace.report.summary import Summary

MARK = '<!doctype html>\n<html lang=en>\n<meta name=generator content="ownpace'
"""What every page begins with: only such a file is replaced."""
MOST_RUNS = 40
_DASHES = ("", "6 4", "2 3", "10 3 2 3")
"""Of several runs of one colour: those of one algorithm, or, by chance, of two of the user's own."""
_SCRIPTS = ("curves.js", "timeline.js", "page.js")


@dataclass(frozen=True)
class PageRun:
    """One run as the page shows it."""

    name: str
    digest: RunDigest
    settings: Mapping[str, object]
    """Its configuration, as far as it can be read."""
    repeat: str
    """The command that repeats it, or why there is none."""
    problem: str | None = None
    """What is wrong with its files."""

    @cached_property
    def summary(self) -> Summary:
        """The run in numbers."""
        return self.digest.summary()


def write_page(runs: Sequence[PageRun], path: Path, made_at: str) -> None:
    """Write one page about these runs.

    Raises:
        InputError: There are too many of them, or the file is someone else's.
        OSError: It cannot be written.
    """
    if len(runs) > MOST_RUNS:
        raise InputError(f"{len(runs)} runs were given; a page shows {MOST_RUNS} at most: give fewer")
    write_text(path, page(runs, made_at))


def page(runs: Sequence[PageRun], made_at: str) -> str:
    """The page about these runs."""
    dashes = _dashes(runs)
    headline, more = verdict([(run.name, run.summary, run.settings) for run in runs])
    marks = [swatch(colour_of(run.summary.algorithm), dash) for run, dash in zip(runs, dashes, strict=True)]
    script = "".join(_asset(name) for name in _SCRIPTS)
    sections = [
        _header(headline, [*more, *_happened(runs), *_problems(runs)]),
        _section("runs", "Runs", summary_table([(m, r.name, r.summary) for m, r in zip(marks, runs, strict=True)])),
        _curves(runs),
        _section("time", "Where the time went", _TIME + _cards(runs, marks, _time)),
        _section("updates", "Staleness, and samples per update", _cards(runs, marks, _updates)),
        _timelines(runs, marks),
        _section("settings", "What was run", _settings(runs, marks)),
    ]
    data = [_data(run, dash) for run, dash in zip(runs, dashes, strict=True)]
    text = "\n".join(
        (
            f'{MARK} {__version__}">',
            "<meta charset=utf-8>",
            f'<meta http-equiv=Content-Security-Policy content="{_policy(script)}">',
            '<meta name=viewport content="width=device-width, initial-scale=1">',
            '<meta name=color-scheme content="light dark">',
            f"<title>{escape(headline)} – ownpace</title>",
            f"<style>{_asset('page.css')}</style>",
            "<main>",
            "<noscript>Curves and timelines are drawn by a script, which is switched off here.</noscript>",
            *sections,
            f"<footer>Made by ownpace {__version__}, {escape(made_at)}. This file needs nothing but itself.</footer>",
            "</main>",
            f"<script type=application/json id=data>{_embedded(data)}</script>",
            f"<script>{script}</script>",
            "</html>\n",
        )
    )
    return text.encode("utf-8", "replace").decode("utf-8")  # JSON may hold halves of characters


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    """Only this page's own script is run, whatever the runs' names and settings hold, and nothing is loaded."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"


def _embedded(data: object) -> str:
    # A `<` could end the script; the others end lines for some readers.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _dashes(runs: Sequence[PageRun]) -> list[str]:
    """Runs of one algorithm have its colour, and all of one colour have lines of their own."""
    seen: Counter[str] = Counter()
    dashes = []
    for run in runs:
        colour = colour_of(run.summary.algorithm)
        dashes.append(_DASHES[seen[colour] % len(_DASHES)])
        seen[colour] += 1
    return dashes


def _data(run: PageRun, dash: str) -> Mapping[str, object]:
    return {
        "name": run.name,
        "colour": colour_of(run.summary.algorithm),
        "dash": dash,
        "targets": {"accuracy": run.summary.target, "loss": run.summary.target_loss},
        "curves": chart_data.curves(run.digest),
        "timeline": chart_data.timeline(run.digest),
    }


def _header(headline: str, more: Sequence[str]) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in more)
    return f"<header><p class=kicker>ownpace report</p><h1>{escape(headline)}</h1><ul>{lines}</ul></header>"


def _section(name: str, title: str, content: str) -> str:
    return f"<section id={name} aria-labelledby=h-{name}><h2 id=h-{name}>{title}</h2>{content}</section>"


def _choice(name: str, about: str, options: Sequence[tuple[str, str]]) -> str:
    """A row of buttons of which one is on."""
    buttons = "".join(
        f"<label><input type=radio name={name} value={value}{' checked' if not at else ''}><span>{text}</span></label>"
        for at, (value, text) in enumerate(options)
    )
    return f'<div class=choice role=radiogroup aria-label="{about}">{buttons}</div>'


def _curves(runs: Sequence[PageRun]) -> str:
    kinds = [kind for kind in ("accuracy", "loss") if any(getattr(run.digest, kind).points for run in runs)]
    if not kinds:
        return _section("curves", "Curves", "<p class=none>The model was not evaluated.</p>")
    thinned = [run.name for run in runs if run.digest.loss.num_added > len(run.digest.loss.points)]
    left_out = f"<p class=none>Of {escape(', '.join(thinned))}, not every evaluation is drawn; extremes are.</p>"
    controls = _choice("value", "what is drawn", [(kind, f"test {kind}") for kind in kinds])
    controls += _choice("over", "over what it is drawn", [("t", "over time"), ("samples", "over samples")])
    chart = '<div id=chart class=chart></div><div id=legend class=legend role=group aria-label="runs shown"></div>'
    return _section("curves", "Curves", f"<div class=controls>{controls}</div>{chart}{left_out if thinned else ''}")


_TIME = (
    "<p class=key><span><i class=compute></i>computing</span><span><i class=wait></i>waiting</span>"
    "<span><i class=load></i>loading</span><span><i class=transfer></i>transfer</span>"
    "<small>Loading and transfers go on beside the others, so they are drawn below.</small></p>"
)


def _cards(runs: Sequence[PageRun], marks: Sequence[str], content: Callable[[PageRun], str]) -> str:
    cards = "".join(
        f"<article><h3>{mark} {escape(run.name)}</h3>{content(run)}</article>"
        for mark, run in zip(marks, runs, strict=True)
    )
    return f"<div class=cards>{cards}</div>"


def _time(run: PageRun) -> str:
    missing = (
        ""
        if not run.digest.omitted
        else ("<p class=none>Waiting, loading and transfers are those of the recorded stretches alone.</p>")
    )
    return time_bars(run.digest) + missing


def _updates(run: PageRun) -> str:
    summary, digest = run.summary, run.digest
    colour = f'style="--c:{colour_of(summary.algorithm)}"'
    return f"<div class=pair {colour}>" + (
        histogram("staleness", digest.staleness.bins(), summary.staleness.mean, summary.staleness.max)
        + histogram(
            "samples per update", digest.update_samples.bins(), summary.update_samples.mean, summary.update_samples.max
        )
        + "</div>"
    )


def _timelines(runs: Sequence[PageRun], marks: Sequence[str]) -> str:
    keys = "<p class=hint>Drag or scroll to move and zoom; with the keyboard: arrows, + and −, 0 for all of it.</p>"
    if len(runs) > 1:
        keys += _choice(
            "together", "which window is shown", [("each", "each by itself"), ("same", "the same window for all")]
        )
    bodies = []
    for at, (run, mark) in enumerate(zip(runs, marks, strict=True)):
        rows, workers = len(run.digest.start.timeline.rows), len(run.digest.run.groups.get("workers", []))
        some = f" <small>{rows} of {workers:,} workers, some of every class</small>" if workers > rows else ""
        bodies.append(
            f"<article><h3>{mark} {escape(run.name)}{some}</h3><div class=timeline data-run={at}></div></article>"
        )
    return _section("timeline", "Timeline", f"<div class=controls>{keys}</div>{''.join(bodies)}")


def _settings(runs: Sequence[PageRun], marks: Sequence[str]) -> str:
    table = differences([(run.name, run.settings) for run in runs])
    each = "".join(
        f"<article><h3>{mark} {escape(run.name)}</h3><p class=repeat>{escape(run.repeat)}</p>"
        f"<details><summary>all settings</summary>{whole_settings(run.settings)}</details></article>"
        for mark, run in zip(marks, runs, strict=True)
    )
    return f"<div class=scroll>{table}</div><div class=cards>{each}</div>"


def _happened(runs: Sequence[PageRun]) -> list[str]:
    """What became of machines: the first of each run, which its timeline may not show at first."""
    lines = []
    for run in runs:
        if marks := chart_data.marks(run.digest):
            more = f", and {len(marks) - 1:,} more of this kind" if len(marks) > 1 else ""
            lines.append(f"{run.name}: after {duration(marks[0][0])}, {marks[0][1]}{more}; its timeline shows where.")
    return lines


def _problems(runs: Sequence[PageRun]) -> list[str]:
    lines = [f"{run.name}: {run.problem}" for run in runs if run.problem is not None]
    for run in runs:
        omitted = [each for each in run.digest.omitted if each.why != "limit"]
        if omitted:
            lines.append(f"{run.name}: detail is missing from {omitted[0].t:.3g} s on: {omitted[0].why[:200]}")
    return lines
