"""The runs in numbers, and what was run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape

from ownpace.report.page.words import count, duration, goal, percent
from ownpace.report.summary import Summary

_FIRST = (
    *(
        "algorithm",
        "parameters",
        "task",
        "model",
        "fleet",
        "engine",
        "seed",
        "batch_size",
        "optimizer",
        "lr",
        "momentum",
    ),
    *("schedule", "samples", "seconds"),
)
"""What people ask for first."""
_LONGEST_SETTINGS = 20_000
"""Characters of a configuration that are shown."""


def swatch(colour: str, dash: str = "") -> str:
    """A small piece of a run's line."""
    dashes = f' stroke-dasharray="{escape(dash)}"' if dash else ""
    return (
        f'<svg class=swatch viewBox="0 0 22 8" aria-hidden=true><path d="M1 4H21" style="--c:{escape(colour)}"'
        f"{dashes}/></svg>"
    )


def summary_table(rows: Sequence[tuple[str, str, Summary]]) -> str:
    """One row for each run: its swatch, its name, and its numbers; on narrow screens a card for each."""
    target = next((found for _, _, summary in rows if (found := goal(summary)) is not None), None)
    early = any(summary.reason != "finished" for _, _, summary in rows)
    without = {"accuracy"} if all(summary.accuracy is None for _, _, summary in rows) else set()
    body = []
    for mark, name, summary in rows:
        cells = [
            f'<td data-label="{escape(label)}">{escape(value)}</td>'
            for label, value in _cells(summary, target, early)
            if label not in without
        ]
        body.append(f"<tr><th scope=row>{mark} {escape(name)}</th>{''.join(cells)}</tr>")
    heads = "".join(
        f"<th scope=col>{escape(label)}</th>" for label, _ in _cells(rows[0][2], target, early) if label not in without
    )
    return (
        f"<table class=runs><thead><tr><th scope=col>run</th>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    )


def _cells(summary: Summary, target: str | None, early: bool) -> list[tuple[str, str]]:
    cells = []
    if target is not None:
        cells.append((f"time to {target}", _time(summary, target)))
    most = summary.update_samples.max
    cells += [
        ("accuracy", "–" if summary.accuracy is None else percent(summary.accuracy, 1)),
        ("loss", "–" if summary.loss is None else f"{summary.loss:.4g}"),
        ("samples/s", count(summary.samples_per_s)),
        ("of limit", percent(summary.share_of_limit)),
        ("updates", count(summary.updates)),
        ("samples per update", count(summary.update_samples.mean) + ("" if most is None else f", ≤ {most:,}")),
        ("staleness", f"{summary.staleness.mean:.1f}, ≤ {summary.staleness.max:,}"),
        ("time", duration(summary.seconds)),
    ]
    if early:
        cells.append(("ended", "finished" if summary.reason == "finished" else (summary.code or "early")))
    return cells


def _time(summary: Summary, target: str) -> str:
    """The time to the target; of a run that has another one, to that."""
    own = goal(summary)
    if own is None:
        return "–"
    of_its_own = "" if own == target else f" (to {own})"
    return ("not reached" if summary.time_to_target is None else duration(summary.time_to_target)) + of_its_own


def differences(settings: Sequence[tuple[str, Mapping[str, object]]]) -> str:
    """The settings that are not the same in all runs, and those asked for first."""
    known = [each for _, each in settings if each]  # of a damaged run, none may be known
    names = dict.fromkeys((*_FIRST, *(name for each in known for name in each)))
    shown = [
        name
        for name in names
        if any(name in each for each in known)
        and (len({_text(each.get(name)) for each in known}) > 1 or (len(known) == 1 and name in _FIRST))
    ]
    if not shown:
        return "<p>All settings are the same.</p>" if len(known) > 1 else ""
    heads = "".join(f"<th scope=col>{escape(name)}</th>" for name, _ in settings)
    body = "".join(
        f"<tr><th scope=row>{escape(name)}</th>"
        + "".join(f'<td data-label="{escape(run)}">{escape(_short(each.get(name)))}</td>' for run, each in settings)
        + "</tr>"
        for name in shown[:60]
    )
    return (
        f"<table class=settings><thead><tr><th scope=col>setting</th>{heads}</tr></thead><tbody>{body}</tbody></table>"
    )


def whole_settings(settings: Mapping[str, object]) -> str:
    """All of a run's configuration."""
    text = json.dumps(settings, indent=2, ensure_ascii=False, default=str)
    if len(text) > _LONGEST_SETTINGS:
        text = f"{text[:_LONGEST_SETTINGS]}\n… ({len(text) - _LONGEST_SETTINGS:,} more characters are left out)"
    return f"<pre>{escape(text)}</pre>"


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _short(value: object, most: int = 160) -> str:
    if isinstance(value, Mapping) and "machine" in value:
        return _fleet(value)
    if isinstance(value, Mapping):  # as they are given on the command line
        text = ", ".join(f"{name}={'none' if each is None else _text(each)}" for name, each in value.items()) or "–"
    else:
        text = "–" if value is None else _text(value)
    return text if len(text) <= most else f"{text[:most]} …"


def _fleet(fleet: Mapping[str, object]) -> str:
    """A fleet in a few words, from what its configuration says."""
    machines = fleet.get("machine")
    words = []
    for each in machines if isinstance(machines, list) else []:
        if isinstance(each, Mapping):
            pace = each.get("samples_per_s")
            speed = f" at {pace:,.0f}/s" if isinstance(pace, float | int) else ""
            words.append(f"{each.get('count', 1)} {str(each.get('name', ''))[:40]}{speed}")
    text = ", ".join(words[:12])
    return f"{text} and {len(words) - 12:,} more" if len(words) > 12 else text
