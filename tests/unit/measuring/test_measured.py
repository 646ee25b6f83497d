"""Workers sorted into classes, as a fleet, as a file and in words."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ownpace.core.contract.errors import InputError
from ownpace.fleet import read_fleet
from ownpace.measuring.links import Links
from ownpace.measuring.measured import Measured, Setting, measured
from ownpace.measuring.probe import Findings, WorkerTimes
from ownpace.measuring.words import lines, table

SETTING = Setting("digits", "mlp", 32, "cpu", "2026-01-01 00:00")
NONE = Links(*[0.0] * 7)


def times(samples_per_s: float, s_per_batch: float = 0.0, jitter: float = 0.0, load: float = 0.0) -> WorkerTimes:
    return WorkerTimes(s_per_batch, 1 / samples_per_s, jitter, 0.02, load, 1e-4, 100)


def found(*workers: tuple[str, WorkerTimes], links: Links = NONE) -> Measured:
    return measured(SETTING, Findings([host for host, _ in workers], [each for _, each in workers], links, 20_000))


def test_alike_machines_are_one_class_and_its_name_is_the_hosts() -> None:
    hosts = ("old.lan", times(1000)), ("new.lan", times(4000)), ("old.lan", times(1050))
    classes = found(*hosts).classes
    assert [(each.name, each.ranks, each.hosts) for each in classes] == [
        ("new", (1,), ("new.lan",)),
        ("old", (0, 2), ("old.lan",)),
    ]
    assert [each.name for each in found(("a", times(1000)), ("b", times(1001))).classes] == ["worker"]
    on_one_host = found(("a", times(1000)), ("a", times(2000)))
    assert [each.name for each in on_one_host.classes] == ["class-1", "class-2"]
    # Each is near the one before, but the last is far from the first.
    row = found(*[("a", times(1000 / 1.1**step)) for step in range(4)])
    assert [len(each.ranks) for each in row.classes] == [2, 2]
    for odd in ("server", "../x", "", "-.", "ü" * 90):
        assert found((odd, times(1))).fleet.workers


def test_the_file_is_read_as_the_fleet_that_was_measured(tmp_path) -> None:
    links = Links(1.234e8, 2.5e-4, 3e-3, 1e-4, 1e9, 1e-4, 1e9)
    here = found(("new", times(4000, 1e-3, 0.1)), ("old", times(800)), ("old", times(800)), links=links)
    path = tmp_path / "fleet.toml"
    here.write(path)
    fleet = read_fleet(str(path))
    assert fleet == here.fleet
    assert [worker.machine.samples_per_s for worker in fleet.workers] == [4000, 800, 800]
    assert (fleet.machine[0].s_per_batch, fleet.machine[0].jitter) == (1e-3, 0.1)
    assert (fleet.network.bandwidth_bytes_per_s, fleet.network.latency_s) == (1.234e8, 2.5e-4)
    assert "Task digits, model mlp, batch size 32" in path.read_text()
    with pytest.raises(InputError, match="exists; use --overwrite"):
        here.write(path)
    here.write(path, overwrite=True)
    with pytest.raises(InputError, match=r"does not end in \.toml"):
        here.write(tmp_path / "fleet.json")
    with pytest.raises(InputError, match="there is no folder"):
        here.write(tmp_path / "no" / "fleet.toml")


def test_it_says_who_is_slow_and_why_within_80_columns() -> None:
    fast, links = times(4000), Links(1e8, 1e-3, 6e-3, 1e-4, 1e9, 1e-2, 1e7)
    old = WorkerTimes(0.0, 1 / 1000, 0.5, 0.3, 3e-4, 1e-4, 100)
    told = " ".join(lines(found(("new", fast), ("old", old), ("lazy", times(4000, 0.02)), links=links)))
    for words in (
        "old is 5.6 times slower than new: each sample takes 4.0 times as long and its batches take unevenly long.",
        "lazy is 3.5 times slower than new: each batch begins with 20 ms, 20 ms more.",
        "lazy: 71% of a batch's time is spent on beginning it; batches of 64 would give 1,778 samples/s.",
        "old: 21% of a batch's time is spent on reading its samples.",
        "jitter 0.50",
        "A sum of the gradient (20 kB) takes 6 ms, 0.75 times a batch of new",
        "The network counts",
        "Links differ",
        "Uncertain: old did not keep one pace while measured (± 30%)",
    ):
        assert words in told
    assert lines(found(("a", fast))) == [
        "One worker, so no network was measured: write yours under [network], or measure under torchrun."
    ]
    shown = io.StringIO()
    long = found(*[("a-host-with-a-long-name" * 3, times(1e7 / 3**n, 123.4)) for n in range(3)] * 20)
    Console(file=shown, width=80).print(table(long))
    rows = shown.getvalue().splitlines()
    assert all(len(row) <= 80 for row in rows)
    assert "…" not in shown.getvalue()
