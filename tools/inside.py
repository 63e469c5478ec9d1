"""`ugpu fw state|waves|ring|vm|mem`: what goes on inside a chip, or went on when it failed.

Each takes a device or a bundle of evidence. A device is looked at as it is, without a boot and
without a change; `--boot` brings it up first.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hcq
from hcq import bundle, window
from hcq.errors import BadArgument, NotSupported, UsageError

from .bundles import file_of
from .console import Output

_PARTS = {"states": "states.json", "queues": "hqd.json", "waves": "waves.json"}
_MOST_BYTES = 1 << 20
_ROW = 16  # bytes
_PAGE_BITS = 12


@contextmanager
def _chip(name: str, boot: bool) -> Iterator[Any]:
    """The driver's chip, and the module that looks into it."""
    if not boot:
        with window.open_window(name) as chip:
            yield chip, _module(name, chip)
        return
    with hcq.open(name) as device:
        chip = getattr(device, "chip", None)
        yield chip, _module(name, chip)


def _module(name: str, chip: object) -> window.WindowModule:
    known = str(getattr(getattr(chip, "facts", None), "name", ""))
    if not known:
        raise NotSupported(f"{name} does not expose its internal state to this process")
    return window.module_of_chip(known)


def part(source: str, name: str, boot: bool) -> Any:  # JSON
    """A part of what a bundle has, of a device or a bundle. BadArgument where a bundle lacks it."""
    path = file_of(source)
    if path is not None:
        found = _bundle(path)
        content = found.parts.get(_PARTS[name])
        if content is None:
            missing: Any = found.manifest["missing"]
            reason = missing.get(_PARTS[name], f"it has {', '.join(found.parts)}")
            raise BadArgument(f"{source} has no {_PARTS[name]}: {reason}")
        return json.loads(content)
    if name == "states" and not boot:
        return window.named_states(source)
    with _chip(source, boot) as (chip, module):
        return module.look(chip, name)


def _bundle(path: Path) -> bundle.Bundle:
    """Read a bundle; BadArgument says what a recording is for."""
    try:
        return bundle.read(path)
    except BadArgument as error:
        raise BadArgument(
            f"expected a device or a crash bundle, got {path}: {error.message}; of a recording "
            f"`ugpu reg read {path} REGISTER` shows registers, `ugpu record show {path}` accesses"
        ) from error


def states(source: str, out: Output, *, boot: bool = False) -> int:
    """Show each firmware's and unit's state; exit code 1 where one is not as it should be."""
    found = part(source, "states", boot)
    rows = [(one["unit"], one["name"], "" if one["ok"] else "!", one["meaning"]) for one in found]
    out.table(("unit", "state", "", "meaning"), rows)
    wrong = [one for one in found if not one["ok"]]
    if wrong:
        first = wrong[0]
        registers = ", ".join(f"{name} {value:#x}" for name, value in first["registers"].items())
        out.say()
        out.say(f"first: {first['unit']}, {first['name']} ({registers})", style="bold")
        out.say(f"try: {first['remedy']}")
    out.result(found)
    return 1 if wrong else 0


def waves(source: str, out: Output, *, boot: bool = False) -> int:
    """Show the waves that are on the chip."""
    found = part(source, "waves", boot)
    _add_instructions(source, found)
    rows = []
    for wave in found:
        if "more" in wave:
            rows.append(("", "", "", wave["more"]))
            continue
        values = wave["registers"]
        place = ".".join(map(str, wave["place"]))
        execute = values["EXEC_HI"] << 32 | values["EXEC_LO"]
        kernel = f"{wave['kernel']}+{wave['offset']:#x}" if "kernel" in wave else ""
        kernel = f"{kernel} {wave['instruction']}".strip() if "instruction" in wave else kernel
        rows.append((place, f"{wave['pc']:#x}", f"{execute:#x}",
                     f"{kernel} {wave.get('source', '')} status {values['STATUS']:#x} "
                     f"trapsts {values['TRAPSTS']:#x}".strip()))  # fmt: skip
    out.table(("se.sa.wgp.simd.slot", "pc", "exec", ""), rows)
    if not rows:
        out.say("no wave is on the chip")
    out.result(found)
    return 0


def _add_instructions(source: str, waves: list[dict[str, Any]]) -> None:
    """Add the text of the instruction that each wave is at, where a bundle has its program."""
    path = file_of(source)
    if path is None:
        return
    parts = bundle.read(path).parts
    if "program.bin" not in parts or "program.json" not in parts:
        return
    from am.virtual.isa.decoder.decode import decode
    from am.virtual.isa.decoder.disassembly import text
    from am.virtual.isa.decoder.formats import UnknownInstruction

    code, base = parts["program.bin"], json.loads(parts["program.json"])["address"]
    for wave in waves:
        offset = wave.get("pc", -1) - base
        if 0 <= offset < len(code):
            with contextlib.suppress(UnknownInstruction):
                wave["instruction"] = text(decode(code, offset))


def rings(source: str, out: Output, *, boot: bool = False) -> int:
    """Show the active compute queues of the hardware: pointers and what holds them up."""
    found = part(source, "queues", boot)
    rows = []
    for queue in found:
        values = queue["registers"]
        base = (values["CP_HQD_PQ_BASE_HI"] << 32 | values["CP_HQD_PQ_BASE"]) << 8
        read, write = values["CP_HQD_PQ_RPTR"], values["CP_HQD_PQ_WPTR_LO"]
        rows.append((f"{queue['pipe']}.{queue['queue']}", f"{base:#x}", read, write,
                     "empty" if read == write else f"{write - read} words to go",
                     f"{values['CP_HQD_ERROR']:#x}", values["CP_HQD_VMID"] & 0xF))  # fmt: skip
    out.table(("pipe.queue", "ring", "rptr", "wptr", "", "error", "vmid"), rows)
    if not rows:
        out.say("no compute queue is active")
    out.result(found)
    return 0


def _kept_walk(path: Path, address: int) -> Any:  # JSON
    content = _bundle(path).parts.get("walk.json")
    if content is None:
        raise BadArgument(f"{path} has no walk.json: the failure names no address")
    found: Any = json.loads(content)
    if found["address"] >> _PAGE_BITS != address >> _PAGE_BITS:
        raise BadArgument(
            f"{path} has the entries for {found['address']:#x} alone, expected its page, got "
            f"{address:#x}"
        )
    return found


def walk(
    device: str, address: int, out: Output, *, vmid: int | None = None, hub: str = "gc",
    boot: bool = False,
) -> int:  # fmt: skip
    """Show the page table entries that lead to an address; of a bundle, to that which faulted."""
    path = file_of(device)
    if path is not None:
        found = _kept_walk(path, address)
    else:
        with _chip(device, boot) as (chip, module):
            found = module.walk(chip, address, vmid, hub)
    out.say(f"VMID {found['vmid']}: root {found['root']:#x}")  # fmt: skip
    rows = [
        (step["level"], f"{step['at']:#x}", f"{step['entry']:#018x}") for step in found["steps"]
    ]
    out.table(("level", "at", "entry"), rows)
    end = f"{address:#x} -> {found['physical']:#x}" if "physical" in found else found["end"]
    out.say(end)
    out.result(found)
    return 0 if "physical" in found else 1


def _check_device(device: str) -> None:
    path = file_of(device)
    if path is not None:
        raise BadArgument(f"expected a device, got {path}: files have no device memory")


def read_memory(device: str, address: int, size: int, out: Output, *, boot: bool = False) -> int:
    """Show VRAM by its own addresses, in rows of 16 bytes."""
    if address % 4 or size % 4 or not 0 < size <= _MOST_BYTES:
        raise BadArgument(
            f"expected an address and a size that are multiples of 4, up to {_MOST_BYTES} bytes",
            address=address, size=size,
        )  # fmt: skip
    _check_device(device)
    with _chip(device, boot) as (chip, _):
        data: bytes = chip.vram.read(address, size)
    for start in range(0, size, _ROW):
        row = data[start : start + _ROW]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        out.say(f"{address + start:#012x}  {row.hex(' ', 4):<38}{text}")
    out.result({"address": address, "bytes": data.hex()})
    return 0


def write_memory(
    device: str, address: int, words: list[int], out: Output, *, boot: bool = False,
    yes: bool = False, ask: Callable[[str], str] | None = None,
) -> int:  # fmt: skip
    """Write words to VRAM after showing what is there; asks, as nothing protects who uses it."""
    if address % 4 or any(not 0 <= word < 1 << 32 for word in words):
        raise BadArgument("expected an address that is a multiple of 4, and 32-bit words",
                          address=address)  # fmt: skip
    data = b"".join(word.to_bytes(4, "little") for word in words)
    _check_device(device)
    with _chip(device, boot) as (chip, _):
        before = chip.vram.read(address, len(data))
        out.say(f"{address:#x}: {before.hex(' ', 4)}")
        out.say(f"     -> {data.hex(' ', 4)}")
        out.say("firmware, page tables and programs lie in this memory too", style="yellow")
        if not yes and not _agreed(ask):
            raise UsageError("nothing was written: repeat with --yes to write")
        chip.vram.write(address, data)
    out.result({"address": address, "before": before.hex(), "written": data.hex()})
    return 0


def _agreed(ask: Callable[[str], str] | None) -> bool:
    if ask is None:
        if not sys.stdin.isatty():
            return False
        ask = input
    with contextlib.suppress(EOFError):
        return ask("write? [y/N] ").strip().lower() in ("y", "yes")
    return False
