"""`ugpu fw state|waves|ring|vm|mem`: the internal state of a chip, now or when it failed.

Each verb takes a device, a bundle of evidence or a recording. A device is inspected as it is,
without a boot and without a change; `--boot` brings it up first. From a recording, each verb shows
the state at one moment (tools.base.device_files), as far as the recording contains it.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ugpu import hcq
from ugpu.hcq.disk.bundle import Bundle
from ugpu.hcq.errors import BadArgument, NotRecorded, NotSupported, UsageError
from ugpu.hcq.find import offline as window
from ugpu.hcq.find.registry import Attachment
from ugpu.hcq.registers.value_file import RegisterFile
from ugpu.hcq.transport.recorded.state import failed_stage
from ugpu.tools.base.console import Output
from ugpu.tools.base.device_files import Moment, kept

_PARTS = {"states": "states.json", "queues": "hqd.json", "waves": "waves.json"}
_MOST_BYTES = 1 << 20
_ROW = 16  # bytes
_PAGE_BITS = 12


@contextmanager
def _chip(name: str, boot: bool) -> Iterator[Any]:
    """Yield the driver's chip, and the module that inspects it."""
    if not boot:
        with window.open_window(name) as chip:
            yield chip, _module(name, chip)
        return
    with hcq.open(name) as device:
        chip = getattr(device, "chip", None)
        yield chip, _module(name, chip)


def _module(name: str, chip: object) -> window.WindowModule:
    chip_name = str(getattr(getattr(chip, "facts", None), "name", ""))
    if not chip_name:
        raise NotSupported(f"{name} does not expose its internal state to this process")
    return window.module_of_chip(chip_name)


def opened(source: str, out: Output, at: int | None, boot: bool) -> Bundle | Moment | None:
    """Return the file that a source names, None for a device. Print the note of a recording.
    UsageError for a file with `boot`, BadArgument for a file that has only registers."""
    content = kept(source, at)
    if content is not None and boot:
        raise UsageError(f"{source} is a file: only devices can be booted")
    if isinstance(content, RegisterFile):
        raise BadArgument(
            f"expected a device, a crash bundle or a recording, got {source}, which has registers "
            f"alone: `ugpu reg read {source} REGISTER`"
        )
    if isinstance(content, Moment) and content.note:
        out.say(content.note, style="yellow")
    return content


def part(source: str, file: Bundle | Moment | None, name: str, boot: bool) -> Any:  # JSON
    """Return a part of a bundle, or the same data from a device (None) or a recording. BadArgument
    if a bundle lacks it."""
    if isinstance(file, Bundle):
        content = file.parts.get(_PARTS[name])
        if content is None:
            missing: Any = file.manifest["missing"]
            reason = missing.get(_PARTS[name], f"it has {', '.join(file.parts)}")
            raise BadArgument(f"{source} has no {_PARTS[name]}: {reason}")
        return json.loads(content)
    if isinstance(file, Moment):
        if name == "states":
            transport, module = file.transport()
            return _with_failure(file, module.named_states(Attachment(transport)))
        with file.chip() as (chip, module):
            return module.look(chip, name)
    if name == "states" and not boot:
        return window.named_states(source)
    with _chip(source, boot) as (chip, module):
        return module.look(chip, name)


# Stages whose unit has another name.
_UNITS = {
    **dict.fromkeys(("PSP bootloader", "PSP ring", "TMR", "IP firmware"), "PSP"),
    **dict.fromkeys(("GFX", "compute queue"), "MEC"),
    "RLC autoload": "RLC",
    "copy queues": "SDMA0",
}


def _with_failure(moment: Moment, states: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the states of a recording, at its end with the unit that ended its boot: what the
    driver read of it may look well, or be too little."""
    failed = failed_stage(moment.recording)
    if failed is None or moment.at is not None or moment.stage not in ("", failed[0]):
        return states
    stage, failure = failed
    unit = _UNITS.get(stage, stage)
    reported = next((state for state in states if state["unit"] == unit), None)
    if reported is None or reported["ok"] is not False:
        meaning = f"the boot ended here, in the stage {stage}: {failure.message}"
        state = {
            "unit": unit,
            "name": "failed",
            "ok": False,
            "meaning": meaning,
            "remedy": "the remedy of the error",
            "registers": reported["registers"] if reported is not None else {},
        }
        states = [state if other is reported else other for other in states]
        if reported is None:
            states.append(state)
    return states


def states(
    source: str, out: Output, *, boot: bool = False, at: int | None = None
) -> int:  # fmt: skip
    """Show the state of each firmware and unit; exit code 1 if one is not as it should be."""
    named = part(source, opened(source, out, at, boot), "states", boot)
    marks = {True: "", False: "!", None: "?"}
    rows = [(state["unit"], state["name"], marks[state["ok"]], state["meaning"]) for state in named]
    out.table(("unit", "state", "", "meaning"), rows)
    wrong = [state for state in named if state["ok"] is False]
    if wrong:
        first = wrong[0]
        registers = ", ".join(f"{name} {value:#x}" for name, value in first["registers"].items())
        out.say()
        out.say(f"first: {first['unit']}, {first['name']} ({registers})", style="bold")
        out.say(f"try: {first['remedy']}")
    out.result(named)
    return 1 if wrong else 0


def waves(
    source: str, out: Output, *, boot: bool = False, at: int | None = None, words: bool = False
) -> int:
    """Show the waves on the chip. words: with the registers of those that have them."""
    file = opened(source, out, at, boot)
    listed = part(source, file, "waves", boot)
    if isinstance(file, Bundle):
        _add_instructions(file, listed)
    rows = []
    for wave in listed:
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
                     f"{_why(values)}".strip()))  # fmt: skip
    if rows:
        out.table(("se.sa.wgp.simd.slot", "pc", "exec", ""), rows)
    else:
        out.say("no wave is on the chip")
    for wave in listed if words else ():
        if "scalars" in wave:
            _show_words(wave, out)
    out.result(listed)
    return 0


def _why(values: dict[str, int]) -> str:
    """Return the register that has why a wave stopped: its name and value."""
    name = next(name for name in ("TRAPSTS", "EXCP_FLAG_PRIV") if name in values)
    return f"{name.lower()} {values[name]:#x}"


def _show_words(wave: dict[str, Any], out: Output) -> None:
    """Show the registers of a wave that are not 0: s126 and s127 are EXEC, s106 and s107 VCC."""
    out.say()
    out.say(f"wave {'.'.join(map(str, wave['place']))}:", style="bold")
    scalars = [(f"s{n}", f"{value:#x}") for n, value in enumerate(wave["scalars"]) if value]
    for first in range(0, len(scalars), 8):
        out.say("  ".join(f"{name} {value}" for name, value in scalars[first : first + 8]))
    for number, lanes in enumerate(wave["vectors"]):
        for first in range(0, len(lanes) if any(lanes) else 0, 8):
            row = "  ".join(f"{value:#x}" for value in lanes[first : first + 8])
            out.say(f"v{number}[{first}:{first + 8}] {row}")
    out.say("others are 0, or not read again by the program (models), or not read here")


def _add_instructions(file: Bundle, waves: list[dict[str, Any]]) -> None:
    """Add the text of the instruction at each wave's program counter, if a bundle has its
    program."""
    parts = file.parts
    if "program.bin" not in parts or "program.json" not in parts:
        return
    from ugpu.virtual.amd.isa.decoder.decode import decode
    from ugpu.virtual.amd.isa.decoder.disassembly import text
    from ugpu.virtual.amd.isa.decoder.formats import UnknownInstruction

    code, base = parts["program.bin"], json.loads(parts["program.json"])["address"]
    for wave in waves:
        offset = wave.get("pc", -1) - base
        if 0 <= offset < len(code):
            with contextlib.suppress(UnknownInstruction):
                wave["instruction"] = text(decode(code, offset))


def rings(source: str, out: Output, *, boot: bool = False, at: int | None = None) -> int:
    """Show the active hardware compute queues: their pointers and what blocks them."""
    queues = part(source, opened(source, out, at, boot), "queues", boot)
    rows: list[tuple[object, ...]] = []
    for queue in queues:
        if "more" in queue:
            rows.append(("", "", "", "", queue["more"]))
            continue
        values: dict[str, int | None] = queue["registers"]
        low, high = values["CP_HQD_PQ_BASE"], values["CP_HQD_PQ_BASE_HI"]
        base = None if low is None or high is None else (high << 32 | low) << 8
        read, write = values["CP_HQD_PQ_RPTR"], values["CP_HQD_PQ_WPTR_LO"]
        vmid = values["CP_HQD_VMID"]
        rows.append((f"{queue['pipe']}.{queue['queue']}", _hex(base), _known(read), _known(write),
                     _left(read, write), _hex(values["CP_HQD_ERROR"]),
                     _known(None if vmid is None else vmid & 0xF)))  # fmt: skip
    if rows:
        out.table(("pipe.queue", "ring", "rptr", "wptr", "", "error", "vmid"), rows)
    else:
        out.say("no compute queue is active")
    out.result(queues)
    return 0


def _known(value: int | None) -> object:
    return "not recorded" if value is None else value


def _hex(value: int | None) -> object:
    return _known(value) if value is None else f"{value:#x}"


def _left(read: int | None, write: int | None) -> str:
    if read is None or write is None:
        return ""
    return "empty" if read == write else f"{write - read} words to go"


def _kept_walk(file: Bundle, address: int) -> Any:  # JSON
    content = file.parts.get("walk.json")
    if content is None:
        raise BadArgument(f"{file.path} has no walk.json: the failure names no address")
    kept: Any = json.loads(content)
    if kept["address"] >> _PAGE_BITS != address >> _PAGE_BITS:
        raise BadArgument(
            f"{file.path} has the entries for {kept['address']:#x} alone, expected its page, got "
            f"{address:#x}"
        )
    return kept


@contextmanager
def _looked_into(
    source: str, file: Moment | None, boot: bool
) -> Iterator[tuple[Any, window.WindowModule]]:
    """Yield the chip of a recording or a device."""
    with file.chip() if file is not None else _chip(source, boot) as looked:
        yield looked


def walk(
    source: str, address: int, out: Output, *, vmid: int | None = None, hub: str = "gc",
    boot: bool = False, at: int | None = None,
) -> int:  # fmt: skip
    """Show the page table entries that lead to an address; for a bundle, to the faulting one."""
    file = opened(source, out, at, boot)
    if isinstance(file, Bundle):
        result = _kept_walk(file, address)
    else:
        with _looked_into(source, file, boot) as (chip, module):
            result = module.walk(chip, address, vmid, hub)
    out.say(f"VMID {result['vmid']}: root {result['root']:#x}")  # fmt: skip
    rows = [
        (step["level"], f"{step['at']:#x}", f"{step['entry']:#018x}") for step in result["steps"]
    ]
    out.table(("level", "at", "entry"), rows)
    end = f"{address:#x} -> {result['physical']:#x}" if "physical" in result else result["end"]
    out.say(end)
    out.result(result)
    return 0 if "physical" in result else 1


def read_memory(
    source: str, address: int, size: int, out: Output, *, boot: bool = False, at: int | None = None
) -> int:
    """Show VRAM by its own addresses, in rows of 16 bytes; for a recording, the recorded words.
    NotRecorded if none of them is recorded."""
    if address % 4 or size % 4 or not 0 < size <= _MOST_BYTES:
        raise BadArgument(
            f"expected an address and a size that are multiples of 4, up to {_MOST_BYTES} bytes",
            address=address, size=size,
        )  # fmt: skip
    file = opened(source, out, at, boot)
    if isinstance(file, Bundle):
        raise BadArgument(f"expected a device or a recording, got {source}: a crash bundle has no "
                          f"device memory but what `ugpu crash show {source}` lists")  # fmt: skip
    with _looked_into(source, file, boot) as (chip, _):
        if file is None:
            data: bytes = chip.vram.read(address, size)
            words: list[bytes | None] = [data[at : at + 4] for at in range(0, size, 4)]
        else:
            words = _recorded_words(chip, address, size)
    for start in range(0, len(words), _ROW // 4):
        row = words[start : start + _ROW // 4]
        shown = " ".join("--------" if word is None else word.hex() for word in row)
        letters = b"".join(b"    " if word is None else word for word in row)
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in letters)
        out.say(f"{address + 4 * start:#012x}  {shown:<38}{text}")
    lacking = sum(word is None for word in words)
    if lacking:
        out.say(f"{lacking} of {len(words)} words are not recorded")
        out.result({"address": address, "words": [word and word.hex() for word in words]})
    else:
        out.result({"address": address, "bytes": b"".join(word or b"" for word in words).hex()})
    return 0


def _recorded_words(chip: Any, address: int, size: int) -> list[bytes | None]:  # a driver's chip
    words: list[bytes | None] = []
    first: NotRecorded | None = None
    for place in range(address, address + size, 4):
        try:
            words.append(chip.vram.read(place, 4))
        except NotRecorded as error:
            first = first or error
            words.append(None)
    if first is not None and not any(words):
        raise first
    return words


def write_memory(
    device: str, address: int, words: list[int], out: Output, *, boot: bool = False,
    yes: bool = False, ask: Callable[[str], str] | None = None,
) -> int:  # fmt: skip
    """Write words to VRAM after showing the old ones. It asks first, because users of the memory
    are not protected."""
    if address % 4 or any(not 0 <= word < 1 << 32 for word in words):
        raise BadArgument("expected an address that is a multiple of 4, and 32-bit words",
                          address=address)  # fmt: skip
    data = b"".join(word.to_bytes(4, "little") for word in words)
    if kept(device) is not None:
        raise UsageError(f"{device} is a file: only memory of devices can be written")
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
