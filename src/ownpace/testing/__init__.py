"""Helpers for tests of algorithms, ours and yours.

runs         one run, with all its events, in one call
counted      a task whose parameters count how often each sample was learnt from; blobs: one that a small net learns
             in an instant
conformance  what must hold for every algorithm, as checks to call
"""

from ownpace.testing.conformance import CHECKS, ConformanceError, check_algorithm
from ownpace.testing.runs import run_on, simulate

__all__ = ["CHECKS", "ConformanceError", "check_algorithm", "run_on", "simulate"]
