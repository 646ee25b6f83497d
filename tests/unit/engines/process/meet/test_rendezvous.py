"""What the environment says about how processes find each other."""

from __future__ import annotations

import pytest

from ownpace.core.contract.errors import InputError
from ownpace.engines.process.meet.environment import TIMEOUT_S, default_timeout_s, silence_s
from ownpace.engines.process.meet.rendezvous import Rendezvous
from ownpace.engines.process.talk.mailbox import Mailbox
from ownpace.engines.process.talk.run_key import RunKey


@pytest.mark.parametrize(("text", "seconds"), [("300", 300.0), ("0.5", 0.5), ("", TIMEOUT_S)])
def test_the_environment_says_how_long_to_wait_for_the_others(monkeypatch, text, seconds):
    monkeypatch.setenv("OWNPACE_TIMEOUT_S", text)
    assert default_timeout_s() == seconds
    assert Rendezvous("127.0.0.1", 1, "", "", "127.0.0.1").timeout_s == seconds
    assert Rendezvous("127.0.0.1", 1, "", "", "127.0.0.1", timeout_s=7.0).timeout_s == 7.0


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf", "1e7", "1e20"])
def test_a_time_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv("OWNPACE_TIMEOUT_S", text)
    with pytest.raises(InputError, match=f"OWNPACE_TIMEOUT_S is '{text}'; it must be a number of seconds from 0.001"):
        default_timeout_s()


@pytest.mark.parametrize("text", ["0.001", "1e7"])
def test_a_silence_that_no_connection_can_measure_is_refused(monkeypatch, text):
    """Below two milliseconds there would be no heartbeats at all, and beyond a month no socket takes the number."""
    monkeypatch.setenv("OWNPACE_SILENCE_S", text)
    with pytest.raises(InputError, match=f"OWNPACE_SILENCE_S is '{text}'; it must be a number of seconds from 0.1 to"):
        silence_s()


@pytest.mark.parametrize("silence", ["0.1", "1e6"])
def test_the_shortest_and_the_longest_silence_can_be_had(monkeypatch, silence):
    monkeypatch.setenv("OWNPACE_SILENCE_S", silence)
    Mailbox("one", "127.0.0.1", RunKey.new(), str, silence_s=silence_s()).close()
