"""A run that others attack: who reaches its ports and its store gets nothing out of it, and nothing done.

Each test starts one run and does everything to it, one thing after the other: starting is what takes time.
"""

from __future__ import annotations

import os
import signal
import socket

import pytest
import zmq
from tests.process.started import FOR_LONG, PATIENCE_S, Started, torchrun_train, until
from torch.distributed import TCPStore

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.event_file import read_events
from ownpace.core.contract.events import End
from ownpace.engines.process.talk import private_files
from ownpace.engines.process.talk.mailbox import Mailbox
from ownpace.engines.process.talk.run_key import RunKey
from ownpace.engines.process.talk.wire import Packet, pack

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)
GREETING = b"\xff" + bytes(8) + b"\x7f"  # of ZeroMQ; the version, mechanism and role follow
NULL_CLIENT = GREETING + b"\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
CURVE_CLIENT = GREETING + b"\x03\x00CURVE" + bytes(15) + b"\x00" + bytes(31)
RUBBISH = [
    b"",
    b"\x00",
    b"GET / HTTP/1.1\r\n\r\n",
    os.urandom(4096),
    GREETING[:5],
    NULL_CLIENT,
    NULL_CLIENT + b"\x04\x19\x05READY" + bytes(20),
    CURVE_CLIENT + b"\x06" + (1 << 60).to_bytes(8, "big"),  # a command of 2⁶⁰ bytes
    CURVE_CLIENT + b"\x02" + (1 << 60).to_bytes(8, "big") + bytes(1000),
    CURVE_CLIENT + b"\x04\xc8\x05HELLO" + os.urandom(194),
]


def trains_on(run: Started) -> None:
    """Wait until more has been learnt than now."""
    events = run.out / "events.jsonl"
    size = events.stat().st_size
    until(lambda: events.stat().st_size > size + 2000 or run.process.poll() is not None, "training goes on")
    assert run.process.poll() is None, run.stderr


def port_of(contact: str) -> int:
    return int(contact.partition(" ")[0].rpartition(":")[2])


def knock(port: int) -> None:
    """What somebody without the key can send."""
    for rubbish in RUBBISH:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.settimeout(0.05)
            try:
                connection.sendall(rubbish)
                while connection.recv(4096):
                    pass
            except OSError:
                pass
    message = [b"W", *(bytes(frame) for frame in pack(Packet(stop=True)))]
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.routing_id = b"worker-1"
        stranger.connect(f"tcp://127.0.0.1:{port}")
        stranger.send_multipart(message)
        stranger.poll(100)


def opens(key: str, contact: str) -> bool:
    """Whether the run lets in who has this key."""
    mailbox = Mailbox("worker-1", "127.0.0.1", RunKey(key), lambda to: contact, timeout_s=20)
    try:
        mailbox.connect("server-0")
    except InputError:
        return False
    finally:
        mailbox.close(now=True)
    return True


def test_a_stranger_gets_nothing_and_no_process_outlives_torchrun(start, tmp_path):
    command = torchrun_train("--algorithm", "async", *FOR_LONG)
    run = start(command, TMPDIR=str(tmp_path))
    run.until_training()
    # No file is left between the processes: the key is in memory, and the counters have no names any more.
    assert not (tmp_path / private_files.folder().name).exists()

    # Whoever reaches torchrun's store can list it, read it and write into it; the key is not there.
    store = TCPStore("127.0.0.1", int(command[command.index("--master-port") + 1]), is_master=False)
    written = {key: bytes(store.get(key)) for key in store.list_keys()}
    # Behind a seal of 16 bytes.
    contacts = {key: value[16:].decode() for key, value in written.items() if "/node/" in key or "/presence/" in key}
    assert len(contacts) == 6  # the hub, a server, two workers, two ranks
    server = next(contact for key, contact in contacts.items() if key.endswith("node/server-0"))
    for value in {part for each in written.values() for part in (each, each[:16], each[16:]) if len(part) >= 16}:
        assert not opens(value.decode(errors="replace"), server)
    for key in written:
        if "ownpace/" in key:
            store.set(key, "/etc/passwd")
    trains_on(run)

    # Everything that ownpace listens at, on loopback alone.
    for contact in contacts.values():
        assert contact.startswith("tcp://127.0.0.1:")
        knock(port_of(contact))
    trains_on(run)

    # Killed, the agent can stop nobody: the ranks see for themselves that it is gone.
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    until(lambda: not run.alive(), "no process outlives torchrun")
    *_, end = read_events(run.out / "events.jsonl")
    assert isinstance(end, End)
    assert end.reason == "torchrun, which started this rank, is gone; the run cannot outlive it"
    assert (run.out / "model.safetensors").exists()
