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
    # Prescribed times are long beside what a busy machine takes for itself.
    found = ownpace.measure(Blobs(), batch_size=16, fleet=FLEET, seconds=2.0, out=path)
    new, old = found.findings.workers
    assert new.s_per_sample == pytest.approx(1 / 2000, rel=0.4)
    assert new.s_per_batch == pytest.approx(0.01, rel=0.4)
    assert new.s_per_update == pytest.approx(0.02, rel=0.4)
    assert old.s_per_sample == pytest.approx(1 / 250, rel=0.2)
    assert old.s_per_batch < 0.02
    assert old.s_per_update < 0.01
    assert [len(each.ranks) for each in found.classes] == [1, 1]
    assert found.findings.links.sum_s > 0
    assert found.findings.links.message_s > 0
    json.dumps(found.as_dict())
    fleet = ownpace.read_fleet(str(path))
    assert ownpace.train(task=Blobs(), fleet=fleet, epochs=1, timing_only=True).summary.samples_per_s > 0
