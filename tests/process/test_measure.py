"""Measuring on processes: paces that are prescribed come back."""

from __future__ import annotations

import json

import pytest

import ownpace
from ownpace.testing.blobs import Blobs

FLEET = ownpace.Fleet(
    machine=(
        ownpace.Machine(name="new", samples_per_s=2000, s_per_batch=0.01, s_per_update=0.02),
        ownpace.Machine(name="old", samples_per_s=250),
    )
)


@pytest.mark.timeout(240)
def test_prescribed_paces_come_back_and_a_run_goes_on_with_them(tmp_path) -> None:
    path = tmp_path / "fleet.toml"
    found = ownpace.measure(Blobs(), batch_size=16, fleet=FLEET, seconds=2.0, out=path)
    new, old = found.findings.workers
    # A busy machine makes all of it longer, but not evenly: who sleeps too long makes up for it in the next
    # micro-batch, which may be of another size. What is not measured at all would leave less than half.
    assert new.seconds(16) > 0.5 * (0.01 + 16 / 2000)
    assert old.seconds(16) > 0.5 * 16 / 250
    assert new.s_per_update > 0.5 * 0.02
    assert old.seconds(16) > new.seconds(16)
    assert [len(each.ranks) for each in found.classes] == [1, 1]
    assert found.findings.links.sum_s > 0
    assert found.findings.links.message_s > 0
    json.dumps(found.as_dict())
    fleet = ownpace.read_fleet(str(path))
    assert ownpace.train(task=Blobs(), fleet=fleet, epochs=1, timing_only=True).summary.samples_per_s > 0
