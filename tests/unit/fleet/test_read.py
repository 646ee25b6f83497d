"""Fleets as files, shorthands and presets."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ownpace.core.contract.errors import InputError
from ownpace.fleet import PRESETS, Between, Fleet, Machine, Slowdown, fleet_from, read_fleet, read_toml

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
        assert len(fleet.workers) == (8 if name == "sites" else 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x²", "unknown fleet 'x²'"),
        ("x" + "9" * 5000, "at most 1,000,000 can be simulated"),
        ("x0", "unknown fleet 'x0'"),
        ("1e-320", "fleet '1e-320': samples_per_s is 9.99989e-318; it must be between 1e-06 and 1e+09"),
        ("1e-300,1", "must be between"),
        ("1e300,1", "must be at most 1,000,000,000,000,000"),
        ("1e-5,100", "0.01 to 100000 samples/s; the fastest may be 1,000,000 times as fast as the slowest"),
        ("4," * 10_000, "is not a list of paces"),
        ("z" * 10_000, "unknown fleet 'zzz"),
    ],
)
def test_absurd_shorthands_are_one_short_line(text, message):
    with pytest.raises(InputError) as caught:
        read_fleet(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[machine]]\ncount = 1" + "0" * 5000, "is not valid TOML"),
        ("a = " + "[" * 900, "is not valid TOML"),
        ("a = " + "{a = " * 900, "is not valid TOML"),
        ("[[machine]]\ncount = 1000000\n" * 50, "the fleet has 50000000 workers; at most 1,000,000"),
        ("[[machine]]\ncount = 1000\n[[fault]]\nworker='w'\nat_s=1\n", "worker-7 … (1000 in all)"),
        (f"[[machine]]\nname = '{'n' * 65}'\n", "at most 64 bytes"),
        ("[[machine]]\nname = 'a\\tb'\n".replace("'", '"'), "all of them printable"),
        ("[[machine]]\nname = '../etc'\n", "without /"),
        ("[[machine]]\nsamples_per_s = 5e-324\n", "must be between"),
        ("[[machine]]\nsamples_per_s = 1\njitter = 1e300\n", "jitter is 1e+300; it must be at most"),
        ("[[machine]]\nsamples_per_s = 1\n[[machine.slowdown]]\nfrom_s=0\nuntil_s=1\nfactor=1e9\n", "factor is 1"),
        ("[[machine]]\n[network]\nbandwidth_bytes_per_s = 1e-300\n", "it must be at least 1"),
        ("[[machine]]\n[[fault]]\nat_s = 1\nworker = 'server-" + "9" * 5000 + "'\n", "which is not in the fleet"),
        ("#" * (17 << 20), "is larger than"),
    ],
)
def test_absurd_files_are_one_short_line(tmp_path, text, message):
    with pytest.raises(InputError) as caught:
        read_toml(write(tmp_path, text))
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)


def test_a_mark_in_front_is_no_error_and_a_pipe_is_not_waited_for(tmp_path):
    assert len(read_toml(write(tmp_path, "\ufeff" + FILE)).workers) == 3
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(InputError, match="not a plain file"):
        read_toml(tmp_path / "pipe.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(InputError, match=r"Is a directory: '.*folder.toml'"):
        read_toml(tmp_path / "folder.toml")


@settings(max_examples=100)
@given(st.data())
def test_damaged_files_are_a_fleet_or_bad_input(tmp_path_factory, data):
    text = bytearray(FILE.encode())
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(text)))
        text[place : place + data.draw(st.integers(0, 10))] = data.draw(
            st.binary(max_size=4)
            | st.sampled_from([b"nan", b"-", b"[[", b"]]", b"1e999", b'"', b"9" * 30, b"\n", b"="])
        )
    path = tmp_path_factory.mktemp("fleet") / "fleet.toml"
    path.write_bytes(bytes(text))
    with contextlib.suppress(InputError):
        assert len(read_toml(path).workers) <= 1_000_000


@settings(max_examples=100)
@given(st.text(max_size=20) | st.text("x0123456789.,e+- ", max_size=12))
def test_any_text_is_a_fleet_or_bad_input(text):
    with contextlib.suppress(InputError):
        assert read_fleet(text).workers


def test_sites_and_what_is_between_them(tmp_path):
    file = tmp_path / "fleet.toml"
    file.write_text(
        """
        [[machine]]
        site = "a"
        [[machine]]
        site = "b"
        name = "other"
        [[machine]]
        site = "a"
        [[server]]
        site = "b"
        [network.between]
        bandwidth_bytes_per_s = 1e6
        latency_s = 0.5
        """
    )
    fleet = read_toml(file)
    # Site by site, so that a ring crosses each border once.
    assert [(worker.name, worker.machine.site) for worker in fleet.workers] == [
        ("worker-0", "a"),
        ("worker-1", "a"),
        ("other-0", "b"),
    ]
    assert fleet.server[0].site == "b"
    assert fleet.network.between == Between(bandwidth_bytes_per_s=1e6, latency_s=0.5)
    assert fleet_from(asdict(fleet)) == fleet


@pytest.mark.parametrize(
    ("machine", "site", "message"),
    [
        ("site = 'west'\n[[machine]]\nsite = 'east'", "mars", "number 2: 'mars'; known: east, west. A server's site"),
        ("site = 'west'\n[[machine]]\nsite = 'east'", "wset", "number 2: 'wset'; did you mean 'west'? Known: east"),
        ("site = 'west'", "", "number 2: ''; known: west"),
        ("", "mars", "number 2: 'mars'; known: none"),
    ],
)
def test_a_server_must_be_where_machines_are(tmp_path, machine, site, message):
    text = f"[[machine]]\n{machine}\n[[server]]\n[[server]]\nsite = '{site}'\n"
    with pytest.raises(InputError) as caught:
        read_toml(write(tmp_path, text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[network]\nbetween = 3", "between must be a table of the network: [network.between]"),
        ("[network.between]\nlatency = 3", "unknown key in [network.between]: 'latency'; did you mean 'latency_s'?"),
        ("[network.between]\nlatency_s = -1", "[network.between]: latency_s is -1.0; it must be"),
        ("[network.between]\nbandwidth_bytes_per_s = 0.5", "bandwidth_bytes_per_s is 0.5; it must be at least 1"),
        ("[[machine]]\nsite = 3", "site in [[machine]] number 2 is 3; it must be a string"),
        ('[[machine]]\nsite = "a\\n"', "site is 'a\\n'; its name must have at most 64 bytes, all of them printable"),
        (f'[[server]]\nsite = "{"é" * 40}"', "its name must have at most 64 bytes"),
    ],
)
def test_sites_that_are_refused(tmp_path, content, message):
    file = tmp_path / "fleet.toml"
    file.write_text(f"[[machine]]\n{content}\n")
    with pytest.raises(InputError) as caught:
        read_toml(file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
