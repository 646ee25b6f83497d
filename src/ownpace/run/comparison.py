"""What came out of several algorithms on the same fleet and task, in the hand."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ownpace.report.shown import as_figure, as_html, as_text
from ownpace.run.result import Result, Rows, dataframe

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Comparison:
    """The runs of `ownpace.compare`."""

    runs: tuple[Result, ...]
    """All of them, in the order they were made."""

    @cached_property
    def results(self) -> dict[str, Result]:
        """By algorithm; of several seeds, the first."""
        found: dict[str, Result] = {}
        for run in self.runs:
            found.setdefault(run.summary.algorithm, run)
        return found

    @property
    def table(self) -> str:
        """A row for each algorithm, as text; of several seeds, their mean."""
        return as_text([run.summary for run in self.runs])

    def plot(self, path: str | Path | None = None) -> Figure:
        """A figure of all algorithms, which is also written to a file if `path` names one.

        Raises:
            InputError: matplotlib is not installed.
        """
        return as_figure({name: run.outline for name, run in self.results.items()}, path)

    def rows(self) -> Rows:
        """The evaluations of all runs as plain dictionaries, each with its algorithm and seed."""
        return [
            {"algorithm": run.summary.algorithm, "seed": run.summary.seed, **row}
            for run in self.runs
            for row in run.rows()
        ]

    def to_dataframe(self) -> Any:
        """The same as a pandas DataFrame.

        Raises:
            InputError: pandas is not installed.
        """
        return dataframe(self.rows())

    def to_json(self, folder: Path) -> str:
        """What `ownpace compare` writes into a folder."""
        content = {"runs": [run.as_dict() for run in self.runs], "out": str(folder)}
        return json.dumps(content, indent=2) + "\n"

    def __repr__(self) -> str:
        return self.table

    def _repr_html_(self) -> str:
        return as_html([run.summary for run in self.runs])
