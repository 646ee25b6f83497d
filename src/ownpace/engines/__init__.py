"""Engines answer what algorithms ask: `virtual` from a simulated clock."""

from ownpace.engines.job import Job, Outcome
from ownpace.engines.virtual.runner import run_virtual

ENGINES = {"virtual": run_virtual}
"""Name → the function that runs a job."""

__all__ = ["ENGINES", "Job", "Outcome", "run_virtual"]
