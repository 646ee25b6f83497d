"""Where the time went, how stale updates were and how large: drawn with boxes, without a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean

from ownpace.report.digest import RunDigest
from ownpace.report.digest.histogram import Bin
from ownpace.report.digest.shares import KINDS
from ownpace.report.page.words import count, percent

MOST_WORKERS = 16
"""More are shown by class."""
MOST_CLASSES = 16
Shares = Mapping[str, float]


def time_bars(digest: RunDigest) -> str:
    """One bar for each worker, or for each class of machines."""
    seconds = digest.recorded_s or 1.0
    by_class = digest.spent_by_class()
    exact = digest.summary().busy
    workers = {
        worker: {**{kind: spent / seconds for kind, spent in found.items()}, "compute": exact.get(worker, 0.0)}
        for found_by in by_class.values()
        for worker, found in found_by.items()
    }
    if not workers:
        return "<p class=none>The records name no workers.</p>"
    if len(workers) <= MOST_WORKERS:
        rows = [_bar(worker, shares) for worker, shares in workers.items()]
        return f"<div class=bars>{''.join(rows)}</div>"
    rows = []
    for name, members in list(by_class.items())[:MOST_CLASSES]:
        of_class = [workers[member] for member in members]
        busy = [each["compute"] for each in of_class]
        mean = {kind: fmean(each.get(kind, 0.0) for each in of_class) for kind in KINDS}
        spread = f"from {percent(min(busy))} to {percent(max(busy))}" if max(busy) - min(busy) > 0.01 else ""
        rows.append(_bar(f"{name} × {len(members):,}", mean, spread, "bar class"))
    left_out = len(by_class) - len(rows)
    more = f"<p class=none>and {left_out:,} more classes of machines</p>" if left_out else ""
    return f"<div class=bars>{''.join(rows)}</div>{more}"


def _bar(name: str, shares: Shares, note: str = "", style: str = "bar") -> str:
    compute = min(1.0, shares.get("compute", 0.0))
    wait = min(1.0 - compute, shares.get("wait", 0.0))
    beside = {kind: min(1.0, shares.get(kind, 0.0)) for kind in ("load", "transfer")}
    said = ", ".join(
        [f"{percent(compute)} computing", f"{percent(wait)} waiting"]
        + [f"{percent(share)} {verb}" for (_, share), verb in zip(beside.items(), ("loading", "transfer"), strict=True)]
    )
    thin = "".join(
        f'<i class="thin {kind}" style="width:{100 * share:.2f}%"></i>' for kind, share in beside.items() if share
    )
    return (
        f'<div class="{style}" role=img aria-label="{escape(f"{name}: {said}")}" title="{escape(said)}">'
        f"<span class=who>{escape(name[:60])}</span><span class=track>"
        f'<b class=compute style="width:{100 * compute:.2f}%"></b><b class=wait style="width:{100 * wait:.2f}%"></b>'
        f"{thin}</span><span class=value>{percent(compute)}</span>"
        f"{note and f'<span class=note>{escape(note)}</span>'}</div>"
    )


def histogram(title: str, bins: Sequence[Bin], mean: float, most: int | None) -> str:
    """How often each value occurred."""
    if not bins:
        return (
            f"<figure class=histogram><figcaption><b>{escape(title)}</b> mean {count(mean)}"
            f"{'' if most is None else f', ≤ {most:,}'}</figcaption>"
            "<p class=none>Single updates were not recorded.</p></figure>"
        )
    total = sum(each.count for each in bins)
    highest = max(each.count for each in bins)
    columns = "".join(
        f'<i style="height:{100 * each.count / highest:.1f}%" title="{_range(each)}: {each.count:,}"></i>'
        for each in bins
    )
    said = "; ".join(f"{_range(each)}: {percent(each.count / total)}" for each in bins if each.count)
    last = bins[-1].high if most is None else max(bins[-1].low, min(bins[-1].high, most))
    axis = f"<span>{bins[0].low:,}</span>" + (f"<span>{last:,}</span>" if last > bins[0].low else "")
    peak = "" if most is None else f", ≤ {most:,}"
    return (
        f'<figure class=histogram style="--n:{len(bins)}"><figcaption><b>{escape(title)}</b> mean {count(mean)}{peak}'
        "</figcaption>"
        f'<div class=columns role=img aria-label="{escape(f"{title}: {said}")}">{columns}</div>'
        f"<div class=ends>{axis}</div></figure>"
    )


def _range(each: Bin) -> str:
    return f"{each.low:,}" if each.low == each.high else f"{each.low:,} to {each.high:,}"
