"""What the scripts draw curves and timelines from."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

from ownpace.core.contract.events import Fault, Generation
from ownpace.report.digest import RunDigest
from ownpace.report.digest.thinned import Thinned
from ownpace.report.digest.timeline import Overview, Stretch

Json = Mapping[str, object]
_STEPS = 2_000_000
"""Into which a stretch is divided: finer than anybody zooms."""
_DIGITS = 6


def curves(digest: RunDigest) -> Json:
    """Accuracy and loss, each as times, samples and values."""
    return {name: _curve(curve) for name, curve in (("accuracy", digest.accuracy), ("loss", digest.loss))}


def _curve(curve: Thinned) -> Json:
    t, samples, values = zip(*curve.points, strict=True) if curve.points else ((), (), ())
    return {"t": _rounded(t), "samples": list(samples), "y": _rounded(values)}


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values]


def timeline(digest: RunDigest) -> Json:
    """What the rows did: stretches in full, and shares of time over the whole run."""
    lines, end = digest.start.timeline, digest.seconds
    of_class = {worker: name for name, workers in digest.start.classes.items() for worker in workers}
    return {
        "end": end,
        "rows": [{"name": row[:80], "class": of_class[row][:80]} for row in lines.rows],
        "workers": sum(map(len, digest.start.classes.values())),
        "overview": _overview(lines.overview, end),
        "stretches": [_stretch(each) for each in lines.stretches(end)],
        "marks": [{"t": t, "text": text} for t, text in marks(digest)],
        "omitted": _merged([(each.t, each.until) for each in digest.omitted], end / 200),
    }


def _merged(stretches: Sequence[tuple[float, float]], gap: float) -> list[list[float]]:
    """Stretches that follow each other as one."""
    merged: list[list[float]] = []
    for t, until in sorted(stretches):
        if merged and t <= merged[-1][1] + gap:
            merged[-1][1] = max(merged[-1][1], until)
        else:
            merged.append([t, until])
    return merged


def marks(digest: RunDigest) -> list[tuple[float, str]]:
    """What happened to machines, and when."""
    return [(mark.t, _mark(mark)) for mark in digest.marks]


def _mark(mark: Fault | Generation) -> str:
    if isinstance(mark, Fault):
        return f"{mark.what[:40]}: {mark.who[:80]}"
    lost = f", {mark.lost:,} updates lost" if mark.lost else ""
    return f"goes on after a {mark.why[:40]}{lost}"


def _overview(overview: Overview, end: float) -> Json:
    """A byte for each bucket: the share of its time, from 0 to 255."""
    most = len(next(iter(overview.seconds.values()), []))
    used = min(most, int(min(end / overview.width, most)) + 1)
    shares = {
        f"{row} {kind}": base64.b64encode(
            bytes(min(255, round(255 * seconds / overview.width)) for seconds in buckets[:used])
        ).decode()
        for (row, kind), buckets in overview.seconds.items()
    }
    return {"width": overview.width, "shares": shares}


def _stretch(stretch: Stretch) -> Json:
    """Spans by row and kind as whole steps: how long after the end of the one before, and how long."""
    step = max(stretch.end - stretch.start, 1e-9) / _STEPS
    spans: dict[str, list[int]] = {}
    lasts: dict[str, int] = {}
    for row, kind, t, until in sorted(stretch.spans, key=lambda span: span[2]):
        key = f"{row} {kind}"
        begin, end = round((t - stretch.start) / step), round((until - stretch.start) / step)
        spans.setdefault(key, []).extend((begin - lasts.get(key, 0), end - begin))
        lasts[key] = end
    updates = [round((t - stretch.start) / step) for t in sorted(stretch.updates)]
    steps = [now - before for before, now in zip([0, *updates], updates, strict=False)]
    return {"start": stretch.start, "end": stretch.end, "step": step, "spans": spans, "updates": steps}
