"""Engines answer what algorithms ask: `virtual` from a simulated clock, `process` on real processes."""

from ownpace.engines.job import Job, Outcome
from ownpace.engines.process.runner import leads, num_ranks, run_process
from ownpace.engines.virtual.runner import run_virtual

ENGINES = {"virtual": run_virtual, "process": run_process}
"""Name → the function that runs a job."""

__all__ = ["ENGINES", "Job", "Outcome", "leads", "num_ranks", "run_process", "run_virtual"]
