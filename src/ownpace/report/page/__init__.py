"""A report as one HTML page that needs nothing but itself: no other file, no network, no library.

document     the page, put together and written
verdict      what came out, in words
tables       the runs in numbers, and what was run
bars         where the time went; how stale and how large updates were
chart_data   what the scripts draw curves and timelines from
words        numbers as people write them
assets/      its style and its scripts, which are copied into the page
"""

from ownpace.report.page.document import PageRun, write_page

__all__ = ["PageRun", "write_page"]
