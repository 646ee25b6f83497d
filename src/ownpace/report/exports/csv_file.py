"""Evaluations as CSV, one line each."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from ownpace.core.contract.events import Evaluation, Event, Run
from ownpace.core.whole_file import whole_file

HEAD = ("run", "algorithm", "engine", "seed", "seconds", "samples", "updates", "loss", "accuracy")
MARK = ",".join(HEAD)


def write_csv(runs: Mapping[str, Iterable[Event]], path: Path) -> int:
    """Write the evaluations of the runs, by name; returns how many there are. What is not known is left empty.

    Raises:
        OSError: It cannot be written.
    """
    count = 0
    with whole_file(path) as part, part.open("w", encoding="utf-8", errors="replace", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        for name, events in runs.items():
            about: tuple[object, ...] = ("", "", "")
            for event in events:
                if isinstance(event, Run):
                    about = (event.algorithm, event.engine, event.seed)
                elif isinstance(event, Evaluation):
                    writer.writerow((name, *about, event.t, event.samples, event.updates, event.loss, event.accuracy))
                    count += 1
    return count
