"""Standard output and error whose reader may go away (`ownpace train … | head`), which must cost no run."""

from __future__ import annotations

import codecs
import os
import sys
from io import TextIOWrapper

PLAIN = {"≤": "<=", "±": "+-", "×": "x", "…": "...", "→": "->", "µ": "u"}
PLAIN |= {"–": "-", "−": "-", "─": "-", "█": "#", "░": "."}
"""What to write where the encoding lacks a character of ours."""


class LastingStream(TextIOWrapper):
    """Once nobody reads any more, what is written goes nowhere."""

    def write(self, text: str) -> int:
        """Write, if anybody reads."""
        try:
            return super().write(text)
        except BrokenPipeError:
            self._go_nowhere()
            return len(text)

    def flush(self) -> None:
        """Hand on what was written."""
        try:
            super().flush()
        except BrokenPipeError:
            self._go_nowhere()

    def _go_nowhere(self) -> None:
        # What is still in the buffer, too: else it would be tried again at the end, and be an error then.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def outlast_readers() -> None:
    """Let both outlast whoever reads them, and a terminal that lacks a character of ours."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is TextIOWrapper:  # not what tests or notebooks put there
            setattr(sys, name, _lasting(stream))
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=_plainly.__name__)


def _plainly(error: UnicodeError) -> tuple[str, int]:
    """Another way to write what cannot be encoded; a question mark for what is not ours."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(each, "?") for each in error.object[error.start : error.end]), error.end


codecs.register_error(_plainly.__name__, _plainly)


def _lasting(stream: TextIOWrapper) -> LastingStream:
    stream.flush()
    return LastingStream(
        stream.buffer,
        encoding=stream.encoding,
        errors=_plainly.__name__,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
