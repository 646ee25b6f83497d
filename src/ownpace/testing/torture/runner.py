"""Torture with many seeds, in several processes: `python -m ownpace.testing.torture --seeds 10000`."""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
import time  # noqa: TID251  # seeds are counted per second of the wall clock, for whoever waits
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

import torch

from ownpace.testing.torture.trial import TortureReport, torture

LIMIT_S = 30.0
"""Of computing: a seed that takes longer hangs. Most take less than a tenth of a second."""
SHOWN = 10
"""Failures that are printed in full."""


class Hangs(Exception):
    """A seed takes longer than any should."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds, print what does not hold and a table; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ownpace.testing.torture", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one alone, and say what was drawn")
    parser.add_argument("--seeds", type=int, default=1000, help="how many to run (default: 1000)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--processes", type=int, default=2, help="in how many processes (default: 2)")
    parser.add_argument("--algorithm", help="with this algorithm alone (default: any)")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        report = torture(given.seed, given.algorithm)
        print(report)
        return int(bool(report.complaints))
    started = time.monotonic()
    reports = list(follow(run(given.first, given.seeds, given.processes, given.algorithm), given.seeds, sys.stderr))
    print(table(reports))
    failed = [report for report in reports if report.complaints]
    print(
        f"{len(reports)} seeds from {given.first} on, {sum(report.updates for report in reports)} updates, "
        f"{time.monotonic() - started:.0f} s: {len(failed)} failed"
    )
    return int(bool(failed))


def run(first: int, seeds: int, processes: int, algorithm: str | None) -> Iterator[TortureReport]:
    """The reports of a range of seeds, in the order in which they are done."""
    numbers = range(first, first + seeds)
    # Spawned, not forked: torch's threads do not survive a fork.
    with multiprocessing.get_context("spawn").Pool(processes, _prepare, (algorithm,)) as pool:
        yield from pool.imap_unordered(_one, numbers, chunksize=8)


_only: str | None = None


def _prepare(algorithm: str | None) -> None:
    global _only
    _only = algorithm
    torch.set_num_threads(1)
    # Ctrl-C is for the process that waits for all of them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGVTALRM, _hangs)


def _hangs(number: int, frame: object) -> None:
    raise Hangs(f"no end after {LIMIT_S:g} s of computing")


def _one(seed: int) -> TortureReport:
    # Time of this process alone: on a busy machine all takes longer, and nothing hangs.
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        return torture(seed, _only)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def follow(reports: Iterable[TortureReport], total: int, out: TextIO) -> Iterator[TortureReport]:
    """Pass on reports; failures are printed as they come, and now and then how far it is."""
    failed = 0
    for done, report in enumerate(reports, 1):
        if report.complaints:
            failed += 1
            print(report if failed <= SHOWN else f"seed {report.seed}: {report.complaints[0]}", end="\n\n", flush=True)
        if done % 100 == 0:
            print(f"\r{done} of {total} seeds, {failed} failed", end="", file=out, flush=True)
        yield report
    print(file=out)


def table(reports: Sequence[TortureReport]) -> str:
    """How many seeds each algorithm had with each kind of fault, and how many failed."""
    kinds = sorted({fault for report in reports for fault in report.faults})
    number: dict[str, Counter[str]] = defaultdict(Counter)
    failed: dict[str, Counter[str]] = defaultdict(Counter)
    for report in reports:
        for row in (report.algorithm, "all"):
            for column in (*report.faults, "seeds"):
                number[row][column] += 1
                failed[row][column] += bool(report.complaints)

    def cell(row: str, column: str) -> str:
        bad = failed[row][column]
        return f"{number[row][column]}" + (f" ({bad} ✗)" if bad else "")

    columns = ["seeds", *kinds]
    rows = [["algorithm", *columns]]
    rows += [[row, *(cell(row, column) for column in columns)] for row in (*sorted(set(number) - {"all"}), "all")]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
