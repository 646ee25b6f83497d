"""A fleet written and read again is the same."""

from __future__ import annotations

import tomllib

import pytest

from ownpace.fleet import PRESETS, Between, Fleet, Machine, Network, PlannedFault, ServerMachine, Slowdown, fleet_from
from ownpace.fleet.write import fleet_to_toml

EVERYTHING = Fleet(
    machine=(
        Machine(
            name='a "quoted" näme\\😀',
            count=2,
            samples_per_s=1234.5,
            jitter=0.25,
            io_s_per_sample=1e-05,
            s_per_batch=0.125,
            s_per_update=3e-07,
            slowdown=(Slowdown(from_s=1, until_s=2.5, factor=3), Slowdown(from_s=4, until_s=5, factor=0.5)),
            site="west",
        ),
        Machine(),
    ),
    network=Network(bandwidth_bytes_per_s=1e15, latency_s=0.5, between=Between(latency_s=0.25), prescribed=True),
    server=(ServerMachine(), ServerMachine(bandwidth_bytes_per_s=5.0, host=1, site="west")),
    fault=(
        PlannedFault(worker="worker-0", at_s=1.5, kind="pause", back_at_s=2.0),
        PlannedFault(worker="server-1", at_s=9),
    ),
)


@pytest.mark.parametrize("fleet", [EVERYTHING, *(fleet for _, fleet in PRESETS.values())])
def test_a_fleet_written_is_the_same_fleet_read(fleet: Fleet) -> None:
    assert fleet_from(tomllib.loads(fleet_to_toml(fleet))) == fleet


def test_comments_are_lines_of_comment_whatever_they_hold() -> None:
    fleet = Fleet(machine=(Machine(samples_per_s=1.0),))
    text = fleet_to_toml(fleet, ["when", "a host\n[[machine]]\x1b[0m", ""])
    assert text.startswith("# when\n# a host [[machine]] [0m\n#\n\n[[machine]]\nname = ")
    assert fleet_from(tomllib.loads(text)) == fleet
