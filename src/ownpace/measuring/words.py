"""What was measured, in words and as a table: who is slow, and why."""

from __future__ import annotations

from rich.table import Table

from ownpace.fleet.model import MEAN_ABS_NORMAL
from ownpace.measuring.measured import MachineClass, Measured, rate

_SLOWER = 1.15
_LARGE_FIXED = 0.4
"""Of a micro-batch's time."""
_LARGE_LOAD = 0.2
_LARGE_JITTER = 0.25
_LARGE_SUM = 0.25
_UNCERTAIN = 0.1
_VISIBLE = 0.2
_UNLIKE = 2.0
_NAME = 12
"""Characters of a class's name in the table."""


def table(found: Measured) -> Table:
    """One row for each class of machines; within 80 columns."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("machines", no_wrap=True, overflow="ellipsis", max_width=_NAME + 6)
    for head in ("samples/s", "± %", "of best", "begin", "a sample", "jitter", "update"):
        shown.add_column(head, justify="right", no_wrap=True)
    fastest = found.classes[0].samples_per_s
    for each in found.classes:
        times, many = each.times, f" x {len(each.ranks)}" if len(each.ranks) > 1 else ""
        shown.add_row(
            f"{each.name[:_NAME]}{many}",
            rate(each.samples_per_s),
            f"{100 * times.uncertainty:.0f}",
            f"{each.samples_per_s / fastest:.0%}",
            seconds(times.s_per_batch),
            seconds(times.s_per_sample),
            f"{times.jitter:.2f}",
            seconds(times.s_per_update),
        )
    return shown


def lines(found: Measured) -> list[str]:
    """Who is slow and why, what the network takes, and how far that can be relied on."""
    told = [line for each in found.classes[1:] for line in _slower(each, found.classes[0])]
    for each in found.classes:
        told += _costs(each, found.setting.batch_size)
    told += _network(found)
    unsure = [each for each in found.classes if each.times.uncertainty > _UNCERTAIN]
    if unsure:
        told.append(
            f"Uncertain: {_and(each.name for each in unsure)} did not keep one pace while measured (± "
            f"{max(each.times.uncertainty for each in unsure):.0%}); others use the machine, too, or it was warming "
            "up. Measure again when it is quiet, or longer (--seconds)."
        )
    return told


def _slower(each: MachineClass, fastest: MachineClass) -> list[str]:
    """Why a class is slower than the fastest."""
    ratio = fastest.samples_per_s / each.samples_per_s
    if ratio < _SLOWER:
        return []
    per_sample = each.times.s_per_sample / fastest.times.s_per_sample
    begin_s = each.times.s_per_batch - fastest.times.s_per_batch
    why = []
    if per_sample > _SLOWER:
        why.append(f"each sample takes {per_sample:.1f} times as long")
    if begin_s > 0.2 * (each.batch_s - fastest.batch_s):
        why.append(f"each batch begins with {seconds(each.times.s_per_batch)}, {seconds(begin_s)} more")
    if each.times.jitter > fastest.times.jitter + _LARGE_JITTER:
        why.append("its batches take unevenly long")
    return [f"{each.name} is {ratio:.1f} times slower than {fastest.name}: {_and(why) or 'a little of everything'}."]


def _costs(each: MachineClass, batch_size: int) -> list[str]:
    """What of a class's time a user could do something about."""
    times, told = each.times, []
    mean = 1 + times.jitter * MEAN_ABS_NORMAL
    fixed = times.s_per_batch * mean / each.batch_s
    if fixed > _LARGE_FIXED:
        twice = 2 * batch_size / (each.batch_s + batch_size * times.s_per_sample * mean)
        told.append(
            f"{each.name}: {fixed:.0%} of a batch's time is spent on beginning it; batches of {2 * batch_size} would "
            f"give {rate(twice)} samples/s."
        )
    load = batch_size * times.load_s_per_sample / each.batch_s
    if load > _LARGE_LOAD:
        told.append(f"{each.name}: {min(load, 1):.0%} of a batch's time is spent on reading its samples.")
    if times.jitter > _LARGE_JITTER:
        told.append(
            f"{each.name}: batches take {mean:.1f} times their shortest time on average (jitter {times.jitter:.2f}); "
            "what waits for all machines waits for the unlucky ones."
        )
    return told


def _network(found: Measured) -> list[str]:
    links, fastest = found.findings.links, found.classes[0]
    if not links.sum_s:
        return ["One worker, so no network was measured: write yours under [network], or measure under torchrun."]
    share = links.sum_s / fastest.batch_s
    size = found.findings.parameter_bytes
    told = [
        f"A sum of the gradient ({_bytes(size)}) takes {seconds(links.sum_s)}, {share:.2g} times a batch of "
        f"{fastest.name}; a message {_message(links.message_s, links.message_bytes_per_s, size)}."
    ]
    if share > _LARGE_SUM:
        told.append(
            "The network counts: larger batches, or methods that hide sums or make few, will gain. "
            "`ownpace plan` says how much."
        )
    slowest = _message(links.slowest_message_s, links.slowest_message_bytes_per_s, size)
    whole_s = links.slowest_message_s + size / links.slowest_message_bytes_per_s
    if whole_s > _UNLIKE * (links.message_s + size / links.message_bytes_per_s):
        told.append(
            f"Links differ: over the slowest from the first worker, a message takes {slowest}. "
            "The file has one figure for all, that of sums."
        )
    return told


def _message(latency_s: float, bytes_per_s: float, largest: int) -> str:
    """How long a message takes. Where the largest took hardly longer than an empty one, that says nothing of a rate."""
    rate = f", then {_bytes(bytes_per_s)}/s" if largest / bytes_per_s > _VISIBLE * latency_s else ""
    return f"{seconds(latency_s)}{rate}"


def seconds(value: float) -> str:
    """A time in its unit.

    >>> seconds(0.00123), seconds(2.5e-05), seconds(12.3)
    ('1.23 ms', '25 µs', '12.3 s')
    """
    if value >= 1:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"


def _bytes(value: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} bytes"


def _and(parts: object) -> str:
    assert hasattr(parts, "__iter__")
    *most, last = [*parts] or [""]
    return f"{', '.join(most)} and {last}" if most else last
