"""`ugpu ls` and `ugpu info`: list devices, and show one device's identity and sensors."""

from __future__ import annotations

from dataclasses import asdict, replace

from ugpu import hcq
from ugpu.hcq.find.listing import DeviceEntry
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.hotplug import Watcher
from ugpu.hcq.transport.system import System
from ugpu.tools.base.console import Output, human
from ugpu.tools.base.progress import shown
from ugpu.tools.base.readings import read_sensors
from ugpu.tools.inspect import nvidia
from ugpu.usbgpu.thunderbolt import bolt
from ugpu.usbgpu.thunderbolt import enclosures as thunderbolt


def run_ls(out: Output) -> int:
    """List every device name that hcq.open takes on this machine."""
    entries = listed()
    out.table(
        ("device", "what it is", "products", "ISA", "on silicon", "facts"), map(_row, entries)
    )
    out.say("null:<chip or ISA>, such as null:gfx1100: plans work and its memory without a device")
    out.result([asdict(entry) for entry in entries])
    return 0


def listed(machine: nvidia.NvidiaMachine | None = None) -> list[DeviceEntry]:
    """List hcq's devices, real devices first, with the machine's facts about NVIDIA GPUs and the
    path to cards on the PCI bus."""
    through_driver = {entry.name: entry for entry in nvidia.entries(machine)}
    others = [through_driver.pop(entry.name, entry) for entry in hcq.list_devices()]
    return [*through_driver.values(), *(with_way(entry) for entry in others)]


def with_way(entry: DeviceEntry, system: System | None = None) -> DeviceEntry:
    """Return an entry with the links to the card and its enclosure; unchanged for a device that is
    not on a bus."""
    kind, _, address = entry.name.partition(":")
    if kind != "pci":
        return entry
    function = PciFunction(system if system is not None else System(), address)
    facts = entry.facts | thunderbolt.facts(function)
    if system is None and "enclosure_id" in facts:
        enclosure = bolt.devices().get(str(facts["enclosure_id"]))
        facts |= enclosure.facts if enclosure is not None else {}
    return replace(entry, facts=facts)


def run_watch(out: Output, watcher: Watcher | None = None) -> int:
    """Show each card that arrives or departs, until Ctrl-C or until stdout is closed."""
    with watcher if watcher is not None else Watcher() as watching:
        while out.lost is None:
            for change in watching.changes(_WATCH_S):
                out.say(str(change))
                out.result(asdict(change))
    return 0


def names_of(entry: DeviceEntry) -> tuple[object, ...]:
    """Return the names that `hcq.open` accepts for a device: its name, and that of its
    enclosure."""
    return entry.name, entry.facts.get("name_of_enclosure")


_WATCH_S = 1.0  # between checks whether output is still read
COLUMNS = ("products", "isa", "proven_on_silicon")  # facts with columns of their own


def _row(entry: DeviceEntry) -> tuple[object, ...]:
    own = [str(entry.facts.get(name, "")) for name in COLUMNS]
    proven = own[-1] if not entry.name.startswith("virtual:") else "model"
    rest = ", ".join(
        " ".join(human(key, value))
        for key, value in entry.facts.items()
        if value is not None and key not in COLUMNS
    )
    return (entry.name, entry.description, *own[:-1], proven, rest)


def run_info(name: str, out: Output) -> int:
    """Open a device and show its identity, firmware versions and sensor readings."""
    with shown(out, f"info {name}"), hcq.open(name) as device:
        facts: dict[str, object] = {"name": device.name, "target": device.target.name}
        facts |= device.info()
        facts |= next((entry.facts for entry in listed() if name in names_of(entry)), {})
        readings = read_sensors(device)
    rows: list[tuple[str, object]] = [human(*fact) for fact in _flat(facts)]
    shows = [sensor for sensor in readings if sensor.unit != "flag" or sensor.value]
    rows += [(f"sensor {reading.words}", reading) for reading in shows]
    out.table(("fact", "value"), rows)
    out.result({**facts, "sensors": [asdict(reading) for reading in readings]})
    return 0


def _flat(facts: dict[str, object], prefix: str = "") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for key, value in facts.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((prefix + key, value))
    return rows
