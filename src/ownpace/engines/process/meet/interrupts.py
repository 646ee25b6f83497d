"""Ctrl-C and SIGTERM: noted, so that a run ends in order, or a rank leaves it; and what if they do not."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ownpace.core.contract.errors import Interrupted, MachineDied
from ownpace.engines.process.node.context import Orders

PATIENCE_S = 15.0
"""How long a run may take to end after Ctrl-C; torchrun kills what still runs after 30 s."""


@contextmanager
def signals(orders: Orders) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the run in order, its results kept."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    # Only noted here: a handler runs between any two instructions, and must not touch what it interrupts.
    def note(number: int, frame: FrameType | None) -> None:
        orders.stops.append(signal.Signals(number).name)
        if len(orders.stops) == 1:
            patience.start()
        elif orders.leaves:  # elsewhere, whoever leads the run counts them
            orders.alarms.append(Interrupted(f"interrupted by a second {orders.stops[-1]}"))

    def give_up() -> None:
        late = f"the run did not end within {PATIENCE_S:g} s after {orders.stops[0]}; giving up"
        # One that may leave alone does: whether that ends the others, too, the hub says.
        orders.alarms.append(Interrupted(late) if orders.leaves else MachineDied(late))

    patience = threading.Timer(PATIENCE_S, give_up)
    patience.daemon = True
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        patience.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
