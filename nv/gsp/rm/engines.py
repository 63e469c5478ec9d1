"""Engines of a card, from the resource manager's table of devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ugpu.hcq.errors import FirmwareError
from ugpu.nv.gsp.rm.client import GspClient

# Indices into engineData: ENGINE_INFO_TYPE_* of open-gpu-kernel-modules kernel_fifo.h, the same in
# releases 535 and 570.
_RM_TYPE, _RUNLIST, _FAULT_ID = 2, 3, 4
_AT_ONCE, _MOST_ENTRIES = 32, 256


@dataclass(frozen=True)
class Engine:
    """One engine. kind: its name without a number ("COPY"). number: of its kind. runlist: the list
    of channels that it works through; engines may share one. fault_id, hosts: the MMU's numbers of
    it and of the host engines that feed it."""

    kind: str
    number: int
    runlist: int
    fault_id: int = -1
    hosts: tuple[int, ...] = ()


def read_engines(client: GspClient) -> list[Engine]:
    """Read the table; engines of types that the release's headers do not name are left out."""
    names = {
        value: name.removeprefix("RM_ENGINE_TYPE_")
        for name, value in client.constants.values().items()
        if name.startswith("RM_ENGINE_TYPE_")
        and name[len("RM_ENGINE_TYPE_") :].rstrip("0123456789") in ("GR", "COPY")
    }
    engines: list[Engine] = []
    base = 0
    while True:
        found = client.ask_gpu("NV2080_CTRL_CMD_FIFO_GET_DEVICE_INFO_TABLE", baseIndex=base)
        count = int(found.numEntries)
        if count > _AT_ONCE or base + count > _MOST_ENTRIES:
            raise FirmwareError("the GSP's table of engines is too long", entries=base + count)
        for position in range(count):
            entry = found.entries[position]
            data = entry.engineData
            name = names.get(int(data[_RM_TYPE]))
            if name is None:
                continue
            kind = name.rstrip("0123456789")
            hosts = map(int, entry.pbdmaFaultIds[: int(entry.numPbdmas)])
            number, runlist, fault_id = int(name[len(kind) :]), data[_RUNLIST], data[_FAULT_ID]
            engines.append(Engine(kind, number, int(runlist), int(fault_id), tuple(hosts)))
        base += count
        if not found.bMore or not count:
            return engines


def engine_behind(engines: Sequence[Engine], number: int) -> str:
    """Return the name of the engine with one of the MMU's numbers, "" if there is none. Each
    subcontext of a graphics engine has a number."""
    for engine in engines:
        numbers = range(engine.fault_id, engine.fault_id + (64 if engine.kind == "GR" else 1))
        if number in numbers or number in engine.hosts:
            return f"{engine.kind}{engine.number}"
    return ""


def separate_copies(engines: list[Engine]) -> list[int]:
    """Return the numbers of copy engines whose runlist is not the graphics engine's."""
    graphics = {engine.runlist for engine in engines if engine.kind == "GR"}
    copies = (engine for engine in engines if engine.kind == "COPY")
    return sorted(engine.number for engine in copies if engine.runlist not in graphics)
