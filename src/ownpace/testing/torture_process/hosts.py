"""Hosts that have nothing in common but a switch: network namespaces, whose links can be cut. Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

NAMES = ("a", "b", "c")
PORT = 29711


@contextmanager
def namespaces() -> Iterator[list[str]]:
    """Three hosts, each with an address of a network of their own.

    Raises:
        OSError: They cannot be made here.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise PermissionError("network namespaces need root and iproute2")
    me = os.getpid() % 100_000
    hosts = [f"ownpace-{name}{me}" for name in NAMES]
    with ExitStack() as stack:
        for host in hosts:
            _ip("netns", "add", host)
            stack.callback(_ip, "netns", "del", host)
        # The switch is in a namespace of its own, too: nothing is added to the network of this machine.
        switch = f"ownpace-s{me}"
        _ip("netns", "add", switch)
        stack.callback(_ip, "netns", "del", switch)
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        for number, host in enumerate(hosts):
            _ip("-n", host, "link", "add", "cable", "type", "veth", "peer", "name", f"port{number}", "netns", switch)
            _ip("-n", switch, "link", "set", f"port{number}", "master", "switch", "up")
            _ip("-n", host, "addr", "add", f"{address(number)}/24", "dev", "cable")
            _ip("-n", host, "link", "set", "lo", "up")
            set_link(host, is_up=True)
        yield hosts


def address(number: int) -> str:
    """Of a host."""
    return f"10.78.0.{number + 1}"


def set_link(host: str, *, is_up: bool) -> None:
    """Pull the cable of a host, or plug it in again."""
    _ip("-n", host, "link", "set", "cable", "up" if is_up else "down")


def inside(host: str) -> list[str]:
    """What to put before a command that is to run there."""
    return ["ip", "netns", "exec", host]


def variables(rank: int) -> dict[str, str]:
    """What a rank of that host must be told."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(NAMES)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "GROUP_WORLD_SIZE": str(len(NAMES)),
        "MASTER_ADDR": address(0),
        "MASTER_PORT": str(PORT),
        "OWNPACE_KEY": "a key that all hosts were given",
    }


def _ip(*words: str) -> None:
    try:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise OSError(f"ip {' '.join(words)}: {error.stderr.strip()}") from None
