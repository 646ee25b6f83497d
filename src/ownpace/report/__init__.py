"""Reports: tables and figures made from events, and from nothing else."""

from ownpace.report.summary import Summary, summarize

__all__ = ["Summary", "summarize"]
