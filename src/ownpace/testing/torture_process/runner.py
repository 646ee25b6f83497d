"""Runs, one after the other, each with several blows, and a table of what they did."""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from ownpace.algorithms import ALGORITHMS
from ownpace.core.contract.events import Update
from ownpace.testing.torture_process.blows import Ordeal, draw_cuts, draw_ordeal
from ownpace.testing.torture_process.hosts import NAMES, inside, namespaces, set_link, variables
from ownpace.testing.torture_process.strikes import Striker
from ownpace.testing.torture_process.verdict import Found, RunVerdict, complaints_about, found_in
from ownpace.testing.torture_process.watched import StandsStill, WatchedRun

_MODULE = "python -m ownpace.testing.torture_process"


def main(arguments: Sequence[str] | None = None) -> int:
    """Torture, and print what came of it; returns the exit code."""
    given = _parser().parse_args(arguments)
    verdicts: list[RunVerdict] = []
    if given.seed is not None:
        draw = draw_cuts if given.links else draw_ordeal
        verdicts.append(_torture(draw(given.seed, given.algorithm), keep=True))
    else:
        verdicts += _until(given.kills, given.first, partial(draw_ordeal, algorithm=given.algorithm))
        if given.links:
            verdicts += _until(given.cuts, given.first, partial(draw_cuts, algorithm=given.algorithm))
    if given.json is not None:
        given.json.write_text(json.dumps([verdict.as_dict() for verdict in verdicts], indent=1), encoding="utf-8")
    print(table(verdicts))
    failed = [verdict for verdict in verdicts if verdict.complaints]
    blows = sum(len(verdict.found) for verdict in verdicts)
    print(f"{len(verdicts)} runs, {blows} blows, {len(failed)} runs failed")
    return int(bool(failed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=_MODULE, description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one alone, and keep its folder")
    parser.add_argument("--kills", type=int, default=50, help="go on until this many blows were struck (default: 50)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--algorithm", choices=list(ALGORITHMS), help="this one alone (default: all in turns)")
    parser.add_argument("--links", action="store_true", help="cut links between network namespaces, too (needs root)")
    parser.add_argument("--cuts", type=int, default=8, help="how many, with --links (default: 8)")
    parser.add_argument("--json", type=Path, help="write everything that was found into this file")
    return parser


def _until(blows: int, first: int, draw: Callable[[int], Ordeal]) -> list[RunVerdict]:
    """Run seeds until this many blows have been struck; seeds whose run fails count as if they had struck all."""
    verdicts: list[RunVerdict] = []
    struck, seed = 0, first
    while struck < blows:
        try:
            verdict = _torture(draw(seed))
        except OSError as error:
            print(f"skipped: {error}", file=sys.stderr)
            return verdicts
        verdicts.append(verdict)
        struck += len(verdict.found) or len(verdict.ordeal.blows)
        seed += 1
    return verdicts


def _torture(ordeal: Ordeal, *, keep: bool = False) -> RunVerdict:
    """One run: start it, strike, let it end, judge, and say so."""
    folder = Path(tempfile.mkdtemp(prefix="ownpace-torture-"))
    begun = time.monotonic()
    verdict = _over_links(ordeal, folder) if ordeal.blows[0].how == "cut" else _on_one_machine(ordeal, folder)
    hit = ", ".join(f"{each.how} {each.who}" for each in verdict.found)
    said = "; ".join(verdict.complaints) or "ok"
    took_s = time.monotonic() - begun
    print(f"seed {ordeal.seed}: {ordeal.algorithm}, {hit or 'nothing'} ({took_s:.0f} s): {said}", file=sys.stderr)
    if verdict.complaints or keep:
        links = "--links " if ordeal.blows[0].how == "cut" else ""
        print(f"  its folder: {folder}; again: {_MODULE} {links}--seed {ordeal.seed}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    return verdict


def _on_one_machine(ordeal: Ordeal, folder: Path) -> RunVerdict:
    run = WatchedRun(folder)
    run.start(ordeal.algorithm, ordeal.on_failure)
    return _judged(run, Striker(run), ordeal)


def _over_links(ordeal: Ordeal, folder: Path) -> RunVerdict:
    with namespaces() as hosts:
        run = WatchedRun(folder)
        for rank, host in enumerate(hosts):
            own = folder / host  # hosts share no files
            own.mkdir()
            told = {**variables(rank), "TMPDIR": str(own)}
            run.start(ordeal.algorithm, ordeal.on_failure, prefix=inside(host), variables=told)
        links = {f"worker-{number}": host for number, host in enumerate(hosts[: len(NAMES)])}
        return _judged(run, Striker(run, lambda who, is_up: set_link(links[who], is_up=is_up)), ordeal)


def _judged(run: WatchedRun, striker: Striker, ordeal: Ordeal) -> RunVerdict:
    complaints: list[str] = []
    try:
        run.until(lambda: run.of(Update), "begin to train")
        striker.strike_all(ordeal)
        codes = run.end()
        if any(codes):
            complaints.append(f"it ended with exit codes {codes}")
    except StandsStill as error:
        complaints.append(str(error))
        run.show_stacks()
    finally:
        run.kill()
    found = list(found_in(run, ordeal, striker.strikes))
    complaints += complaints_about(run, found, striker.strikes)
    return RunVerdict(ordeal, found, complaints, run.samples_since(0.0), len(run.wrong))


def table(verdicts: Sequence[RunVerdict]) -> str:
    """Medians and maxima, by algorithm and by what happened, in Markdown."""
    found = [each for verdict in verdicts for each in verdict.found]
    rows: list[tuple[str, ...]] = [
        ("", "blows", "detect", "new generation", "pause", "back", "updates lost", "samples wrong")
    ]
    for algorithm in dict.fromkeys(verdict.ordeal.algorithm for verdict in verdicts):
        own = [verdict for verdict in verdicts if verdict.ordeal.algorithm == algorithm]
        rows.append(_row(algorithm, [each for verdict in own for each in verdict.found], sum(v.wrong for v in own)))
    for how in dict.fromkeys(each.how for each in found):
        of_workers = [each for each in found if each.how == how and each.who.startswith("worker")]
        others = [each for each in found if each.how == how and each not in of_workers]
        rows += [_row(f"{what}, {how}", own) for what, own in (("workers", of_workers), ("others", others)) if own]
    rows.append(_row("all", found, sum(verdict.wrong for verdict in verdicts)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def _row(name: str, found: Sequence[Found], wrong: int | None = None) -> tuple[str, ...]:
    return (
        name,
        str(len(found)),
        _spread(each.detect_s for each in found),
        _spread(each.regroup_s for each in found),
        _spread(each.pause_s for each in found),
        _spread(each.back_s for each in found if each.back_s is not None),
        str(sum(each.lost_updates for each in found)),
        "" if wrong is None else str(wrong),
    )


def _spread(seconds: Iterable[float]) -> str:
    """Median and maximum."""
    values = list(seconds)
    return f"{statistics.median(values):.2f}, {max(values):.2f} s" if values else "–"
