"""A run's events, digested as they come into what a page shows: its memory does not grow with the run.

run_digest   everything that is kept of one run
thinned      curves of a bounded number of points that keep their extremes
histogram    how often each value occurred, in a bounded number of bins
timeline     what each worker did when: all of the beginning and of the end, shares of time in between
shares       the seconds that each worker spent on each thing
classes      which workers are alike, and which of them are shown
"""

from ownpace.report.digest.run_digest import RunDigest, digest

__all__ = ["RunDigest", "digest"]
