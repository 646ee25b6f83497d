"""Engines answer what algorithms ask: `virtual` from a simulated clock, `process` on real processes."""

from ownpace.engines.job import Job, Outcome
from ownpace.engines.process.meet.agent_watch import started_by
from ownpace.engines.process.run.start import is_main_process, is_next_in_line, num_ranks, run_process
from ownpace.engines.virtual.run import run_virtual

ENGINES = {"virtual": run_virtual, "process": run_process}
"""Name → the function that runs a job."""

__all__ = [
    "ENGINES",
    "Job",
    "Outcome",
    "is_main_process",
    "is_next_in_line",
    "num_ranks",
    "run_process",
    "run_virtual",
    "started_by",
]
