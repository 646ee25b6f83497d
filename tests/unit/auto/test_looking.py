"""The algorithm that looks on while it trains, then goes on as the one it has chosen."""

from __future__ import annotations

import ownpace
from ownpace.auto.looking import UPDATES, WARM_UP, Auto
from ownpace.core.contract import events
from ownpace.testing.blobs import Blobs


def test_it_trains_as_sync_does_then_goes_on_as_what_it_chose() -> None:
    said: list[str] = []
    made: list[events.Update] = []
    fleet = ownpace.Fleet(
        machine=(
            ownpace.Machine(samples_per_s=4000, s_per_batch=0.001, count=2),
            ownpace.Machine(samples_per_s=100),
        )
    )
    config = ownpace.Config(algorithm=Auto(tell=said.append), task=Blobs(), fleet=fleet, batch_size=8, epochs=4)

    def on_event(event: events.Event) -> None:
        if isinstance(event, events.Update) and event.who == "worker-0":
            made.append(event)

    result = ownpace.execute(config, on_event=on_event)
    assert result.error is None
    assert len(said) == 1
    assert said[0].startswith("auto: ")
    # One machine is forty times slower: whatever waits for its equal batches is not taken.
    assert not said[0].startswith("auto: sync")
    looked = made[: WARM_UP + UPDATES]
    assert [update.samples for update in looked] == [24] * (WARM_UP + UPDATES)
    assert len(made) > len(looked)
    assert (result.summary.accuracy or 0) > 0.9


def test_alone_there_is_nothing_to_choose() -> None:
    said: list[str] = []
    result = ownpace.train(algorithm=Auto(tell=said.append), task=Blobs(), fleet="1", epochs=1)
    assert (result.summary.samples, said) == (416, [])


def test_data_that_ends_before_the_choice_is_no_failure() -> None:
    said: list[str] = []
    result = ownpace.train(algorithm=Auto(tell=said.append), task=Blobs(), fleet="2,1", epochs=1)
    assert result.summary.samples >= 400
    assert said == []
