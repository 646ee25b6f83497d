"""Fleets as files, shorthands and presets."""

from __future__ import annotations

import pytest

from ownpace.core.contract.errors import InputError
from ownpace.fleet import PRESETS, Fleet, Machine, Slowdown, read_fleet, read_toml

FILE = """
[[machine]]
name = "new"
count = 2
samples_per_s = 4000
jitter = 0.1
io_s_per_sample = 0.0
[[machine.slowdown]]
from_s = 60
until_s = 120
factor = 3.0
[[machine]]
samples_per_s = 1000
[network]
bandwidth_bytes_per_s = 1.25e8
latency_s = 1e-4
[[server]]
bandwidth_bytes_per_s = 1.25e8
[[fault]]
worker = "new-1"
at_s = 30
kind = "kill"
back_at_s = 45
"""


def write(tmp_path, text):
    path = tmp_path / "fleet.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_file_of_the_documentation(tmp_path):
    fleet = read_toml(write(tmp_path, FILE))
    assert [worker.name for worker in fleet.workers] == ["new-0", "new-1", "worker-0"]
    assert fleet.machine[0].slowdown == (Slowdown(from_s=60, until_s=120, factor=3.0),)
    assert fleet.network.latency_s == 1e-4
    assert fleet.fault[0].back_at_s == 45


def test_only_the_pace_is_needed(tmp_path):
    fleet = read_toml(write(tmp_path, "[[machine]]\nsamples_per_s = 5\n"))
    assert fleet == Fleet(machine=(Machine(samples_per_s=5),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[machine]\n", "is not valid TOML"),
        ("[[machine]]\nsamples_per_s = 1\nsped = 2\n", "unknown key in [[machine]] number 1: 'sped'"),
        ("[[machine]]\nname = 'x'\njitter = 1\n", "machine 'x' has no samples_per_s, but jitter"),
        (
            "[[machine]]\nsamples_per_s = -1\n",
            "[[machine]] number 1: samples_per_s is -1.0; it must be a finite number above 0",
        ),
        ("[[machine]]\nsamples_per_s = nan\n", "samples_per_s is nan"),
        ("[[machine]]\nsamples_per_s = 'fast'\n", "samples_per_s in [[machine]] number 1 is 'fast'"),
        ("[[machine]]\nsamples_per_s = 1\ncount = 0\n", "count is 0; it must be a finite number above 0"),
        ("[network]\nlatency = 1\n[[machine]]\nsamples_per_s = 1", "unknown key in [network]: 'latency'"),
        (
            "[[machine]]\nsamples_per_s = 1\n[[machine.slowdown]]\nfrom = 1\n",
            "[[machine.slowdown]] of machine 1, number 1",
        ),
        ("[[machines]]\nsamples_per_s = 1\n", "unknown key at the top of the file: 'machines'; did you mean 'machine'"),
        ("[machine]\nsamples_per_s = 1\n", "machine must be a list of tables, each headed [[machine]]"),
        ("network = 3\n[[machine]]\nsamples_per_s = 1\n", "network must be one table"),
        ("", "the fleet has no workers"),
        ("[[machine]]\nsamples_per_s=1\n[[fault]]\nworker='w'\nat_s=1\n", "names the worker 'w', which is not in"),
        ("[[machine]]\nsamples_per_s=1\n[[fault]]\nworker='worker-0'\nat_s=1\nkind='pause'\n", "needs back_at_s"),
        ("[[machine]]\nsamples_per_s=1\n[[fault]]\nworker='worker-0'\nat_s=1\nkind='x'\n", "allowed: kill, pause, cut"),
    ],
)
def test_bad_files_name_the_key_and_its_table(tmp_path, text, message):
    with pytest.raises(InputError) as caught:
        read_toml(write(tmp_path, text))
    assert message in str(caught.value)
    assert "fleet.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["4,x", "", "1,,2", "-1,2", "0", "inf", "stepe", "nowhere.toml"])
def test_bad_shorthands(text):
    with pytest.raises(InputError) as caught:
        read_fleet(text)
    assert repr(text) in str(caught.value) or text in str(caught.value)


def test_shorthand_and_presets():
    assert [worker.machine.samples_per_s for worker in read_fleet("4,2,1,0.5").workers] == [4000, 2000, 1000, 500]
    for name, (about, fleet) in PRESETS.items():
        assert read_fleet(name) is fleet
        assert about
        assert len(fleet.workers) == 4
