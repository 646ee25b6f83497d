"""What was measured: of each class of machines and of the network, as figures, as a fleet, and as a fleet file."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass
from pathlib import Path

from ownpace.core.contract.errors import InputError
from ownpace.core.whole_file import write_text
from ownpace.fleet import Fleet, Machine, Network
from ownpace.fleet.network import LONGEST_NAME
from ownpace.fleet.write import fleet_to_toml
from ownpace.measuring.fit import pace_of
from ownpace.measuring.probe import Findings, WorkerTimes

ALIKE = 1.15
"""A worker belongs to a class if its micro-batches take at most this many times as long as those of its fastest."""
_RESERVED = ("", "server", "communicator")


@dataclass(frozen=True)
class Setting:
    """What was measured with."""

    task: str
    model: str
    batch_size: int
    device: str
    when: str


@dataclass(frozen=True)
class MachineClass:
    """Workers that are alike; figures are means over them."""

    name: str
    hosts: tuple[str, ...]
    ranks: tuple[int, ...]
    times: WorkerTimes
    batch_s: float
    """A micro-batch of the batch size, jitter counted."""
    samples_per_s: float
    """Of each, at the batch size."""

    @property
    def machine(self) -> Machine:
        """As a fleet has it."""
        times = self.times
        return Machine(
            name=self.name,
            count=len(self.ranks),
            samples_per_s=_rounded(pace_of(times.s_per_sample)),
            jitter=_rounded(times.jitter, 2),
            s_per_batch=_rounded(times.s_per_batch),
            s_per_update=_rounded(times.s_per_update),
        )


@dataclass(frozen=True)
class Measured:
    """The machines as they were found."""

    setting: Setting
    findings: Findings
    classes: tuple[MachineClass, ...]
    """The fastest first."""

    @property
    def fleet(self) -> Fleet:
        """The same for the virtual engine. Loading counts as computing, as it does on processes."""
        machines = tuple(each.machine for each in self.classes)
        links = self.findings.links
        if not links.bandwidth_bytes_per_s:
            return Fleet(machine=machines)
        bandwidth = _rounded(max(1.0, links.bandwidth_bytes_per_s))
        return Fleet(
            machine=machines, network=Network(bandwidth_bytes_per_s=bandwidth, latency_s=_rounded(links.latency_s))
        )

    def to_toml(self) -> str:
        """The text of a fleet file."""
        here = self.setting
        model = f", model {here.model}" if here.model else ""
        lines = [
            f"Measured by `ownpace measure`, {here.when}.",
            f"Task {here.task}{model}, batch size {here.batch_size}, device {here.device}.",
        ]
        for each in self.classes:
            hosts = ", ".join(each.hosts[:8]) + (" …" if len(each.hosts) > 8 else "")
            lines.append(
                f"{each.name}: {len(each.ranks)} on {hosts}; {rate(each.samples_per_s)} samples/s each at that size, "
                f"give or take {each.times.uncertainty:.0%}"
            )
        if len(self.findings.workers) == 1:
            lines.append("One worker: the network was not measured. Write what yours has under [network].")
        return fleet_to_toml(self.fleet, lines)

    def write(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a fleet file.

        Raises:
            InputError: There is one, and it is not to be overwritten, or it cannot be written.
        """
        check_free(path, overwrite=overwrite)
        try:
            write_text(Path(path), self.to_toml())
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}; give another file") from None

    def as_dict(self) -> dict[str, object]:
        """Everything, as JSON has it."""
        return {
            "setting": asdict(self.setting),
            "classes": [asdict(each) for each in self.classes],
            "workers": [
                {"host": host, **asdict(times)}
                for host, times in zip(self.findings.hosts, self.findings.workers, strict=True)
            ],
            "network": asdict(self.findings.links) if len(self.findings.workers) > 1 else None,
            "parameter_bytes": self.findings.parameter_bytes,
        }


def check_free(path: str | Path, *, overwrite: bool) -> None:
    """Raise if a fleet file cannot be written there."""
    if Path(path).suffix != ".toml":
        raise InputError(f"{path} does not end in .toml, so --fleet could not read it; give a name such as fleet.toml")
    if Path(path).exists() and not overwrite:
        raise InputError(f"{path} exists; use --overwrite (overwrite=True), or give another name")
    if not Path(path).absolute().parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {Path(path).parent}; make it first")


def measured(setting: Setting, findings: Findings) -> Measured:
    """Sort workers into classes."""
    return Measured(setting, findings, _classes(findings, setting.batch_size))


def _classes(findings: Findings, batch_size: int) -> tuple[MachineClass, ...]:
    took = [times.seconds(batch_size) for times in findings.workers]
    groups: list[list[int]] = []
    for rank in sorted(range(len(took)), key=lambda rank: took[rank]):
        # Compared with the fastest of its class, not with the one before: a long row of machines would be one class.
        if not groups or took[rank] > ALIKE * took[groups[-1][0]]:
            groups.append([])
        groups[-1].append(rank)
    names = _names(findings, groups)
    return tuple(_class(name, sorted(ranks), findings, batch_size) for name, ranks in zip(names, groups, strict=True))


def _class(name: str, ranks: list[int], findings: Findings, batch_size: int) -> MachineClass:
    rows = [findings.workers[rank] for rank in ranks]
    means = [sum(column) / len(rows) for column in zip(*map(astuple, rows), strict=True)]
    times = WorkerTimes(*means)
    hosts = tuple(dict.fromkeys(findings.hosts[rank] for rank in ranks))
    batch_s = times.seconds(batch_size)
    return MachineClass(name, hosts, tuple(ranks), times, batch_s, batch_size / batch_s)


def _names(findings: Findings, groups: list[list[int]]) -> list[str]:
    """By host, where no two classes share one; else `class-1`, the fastest, and so on."""
    hosts = [list(dict.fromkeys(findings.hosts[rank] for rank in ranks)) for ranks in groups]
    if len(groups) == 1:
        return [_name(hosts[0][0]) if len(hosts[0]) == 1 else "worker"]
    if sum(len(each) for each in hosts) == len({host for each in hosts for host in each}):
        return [_name(each[0]) for each in hosts]
    return [f"class-{number}" for number in range(1, len(groups) + 1)]


def _name(host: str) -> str:
    """A host's name as that of a machine."""
    name = "".join(each for each in host if each.isprintable() and each != "/").lstrip(".-").split(".")[0]
    name = name.encode()[:LONGEST_NAME].decode(errors="ignore")
    return "worker" if name in _RESERVED else name


def rate(samples_per_s: float) -> str:
    """A pace to show.

    >>> rate(24966.3), rate(0.01234)
    ('24,966', '0.0123')
    """
    return f"{samples_per_s:,.0f}" if samples_per_s >= 10 else f"{samples_per_s:.3g}"


def _rounded(value: float, digits: int = 4) -> float:
    return float(f"{value:.{digits}g}")
