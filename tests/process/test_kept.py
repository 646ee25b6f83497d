"""What a run keeps of workers that died: counted, since memory alone says it only after hours."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

import ownpace
from ownpace.core.contract.errors import Interrupted
from ownpace.core.contract.events import Event, Generation, Update
from ownpace.engines.process.meet import restarts
from ownpace.engines.process.meet.rendezvous import local_store
from ownpace.engines.process.run import launch

DEATHS = 4


def kill(log: Path) -> None:
    """Kill the process that writes this log."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(link) == str(log):  # noqa: PTH115  # it may be no path
                os.kill(int(link.parts[2]), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_store_keeps_nothing_of_those_who_died(tmp_path, monkeypatch):
    store, port = local_store()
    monkeypatch.setattr(launch, "local_store", lambda: (store, port))
    monkeypatch.setattr(restarts, "_LONGEST_S", 0.0)  # started again at once, however young they die
    keys: list[int] = []

    are_all_there = True

    def hear(event: Event) -> None:
        nonlocal are_all_there
        if isinstance(event, Generation) and event.members is not None and len(event.members) == 2:
            are_all_there = True
            keys.append(store.num_keys())
            if len(keys) > DEATHS:
                os.kill(os.getpid(), signal.SIGINT)
        elif isinstance(event, Update) and are_all_there:  # by now, they have met
            are_all_there = False
            kill(tmp_path / "run" / "logs" / "worker-1.log")

    with contextlib.suppress(Interrupted):
        ownpace.train(
            algorithm="sync", task="ownpace.testing.blobs:Blobs", engine="process", fleet="0.1,0.1", batch_size=8,
            on_failure="restart", samples=10**9, checkpoint_every=64, log_files=True, out=tmp_path / "run",
            on_event=hear,
        )  # fmt: skip
    assert len(keys) > DEATHS
    assert keys[-1] <= keys[0] + 1, keys
