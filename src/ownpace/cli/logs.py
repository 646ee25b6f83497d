"""Logging: the library only logs, and the command line decides what is shown."""

from __future__ import annotations

import logging
import sys

LEVELS = (logging.NOTSET, logging.INFO, logging.DEBUG)
"""By the number of times `--verbose` was given."""


class _StandardError(logging.Handler):
    """Writes to what standard error is at that moment: while progress is shown, that is above its bars."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        print(self.format(record), file=sys.stderr)


def show_logs(verbose: int) -> None:
    """Show ownpace's log on standard error, from the level that `--verbose` asks for; without it, warnings alone."""
    logger = logging.getLogger("ownpace")
    # Tests and notebooks call commands several times in one process: each would add a handler.
    for earlier in [handler for handler in logger.handlers if isinstance(handler, _StandardError)]:
        logger.removeHandler(earlier)
    logger.setLevel(LEVELS[verbose])
    # Also for warnings alone: Python's own handler is silent as soon as there is another one, of a log file, say.
    handler = _StandardError()
    if verbose:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    else:
        handler.setLevel(logging.WARNING)
    logger.addHandler(handler)
