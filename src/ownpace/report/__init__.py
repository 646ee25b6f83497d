"""Reports: tables and figures out of events, and of nothing else."""

from ownpace.report.summary import Summary, summarize

__all__ = ["Summary", "summarize"]
