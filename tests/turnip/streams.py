"""Our driver's command streams judged by Mesa's tools.

They are recorded by `ugpu sniff` on a virtual GPU and exported as .rd files. cffdump must decode
them whole, and name every register and field as `ugpu sniff` does. `replay`, a client of its own,
must submit them again without an objection of the model, and with the same result in memory.
turnip's stream for the same dispatch, recorded from its client by the preload library, may differ
from ours in DIFFERENCES alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.objects import compile_text
from hcq.device import Device
from hcq.memory import Placement
from qcom import chips
from qcom.virtual.engine import Engine
from tests.support.adreno import module
from tests.turnip.build import Turnip
from tests.turnip.judge import LIMIT_S, client, objections, served
from tools.sniff import command, node
from tools.sniff.kgsl import calls, rd
from tools.sniff.kgsl.streams import Streams
from tools.sniff.recording import read

COUNT, GROUP, FACTOR = 256, 64, 2.5  # as client.c launches scale.comp first
_SHOTS = 32
# Registers that we write otherwise than turnip for the same dispatch, or alone; docs/adreno.md says
# why. What turnip alone writes is its graphics pipeline, bindless descriptors and push constants.
DIFFERENCES = {
    "HLSQ_CS_CNTL", "HLSQ_CS_KERNEL_GROUP_X", "HLSQ_CS_KERNEL_GROUP_Y", "HLSQ_CS_KERNEL_GROUP_Z",
    "HLSQ_INVALIDATE_CMD", "HLSQ_SHARED_CONSTS", "SP_CS_CNTL_1", "SP_CS_CONFIG", "SP_CS_CTRL_REG0",
    "SP_CS_IBO_COUNT", "SP_CS_INSTRLEN", "SP_CS_OBJ_START_HI", "SP_CS_OBJ_START_LO",
    "SP_MODE_CONTROL", "SP_PERFCTR_ENABLE", "TPL1_DBG_ECO_CNTL1",
}  # fmt: skip
_BODY = """
  %inside = icmp ult i32 %i, %n
  br i1 %inside, label %work, label %end
work:
  %pa = getelementptr inbounds float, ptr addrspace(1) %a, i64 %wide
  %pb = getelementptr inbounds float, ptr addrspace(1) %b, i64 %wide
  %pc = getelementptr inbounds float, ptr addrspace(1) %c, i64 %wide
  %va = load float, ptr addrspace(1) %pa, align 4
  %vb = load float, ptr addrspace(1) %pb, align 4
  %product = fmul float %va, %k
  %sum = fadd float %product, %vb
  store float %sum, ptr addrspace(1) %pc, align 4
  br label %end
end:"""
_PARAMETERS = (
    "ptr addrspace(1) noalias readonly %a, ptr addrspace(1) noalias readonly %b, "
    "ptr addrspace(1) noalias writeonly %c, i32 %n, float %k"
)
_WRITE = re.compile(r"\bwrite (\S+) \(([0-9a-f]+)\)")
_VALUE = re.compile(r"^\s*(\w+): ", re.MULTILINE)
_FIELDS = re.compile(r"^\s*(\w+): \{ (.*) \}$", re.MULTILINE)
_HALF = re.compile("_(LO|HI)$")  # which cffdump tells as one
_COMPLAINT = re.compile(
    r"\bunknown (?:reg|op|type|packet)|\bbad (?:type|op|packet)|bogus|corrupt|could not|no match|"
    r"WARNING|^error", re.I
)  # fmt: skip


@dataclass(frozen=True)
class Recorded:
    """A recording, and its .rd file."""

    streams: Streams
    file: Path


def judged(turnip: Turnip, chip: str) -> dict[str, list[str]]:
    """What is wrong with our streams, by what was tried."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one, where = ours(chip, folder)
        whole = whole_run(chip, folder)
        client_run = turnips(turnip, chip, folder)
        return {
            "cffdump, one dispatch": list(by_cffdump(turnip, one)),
            "replay, one dispatch": list(replayed(turnip, chip, one, where)),
            "cffdump, launches, copies and graphs": list(by_cffdump(turnip, whole)),
            "replay of them": list(replayed(turnip, chip, whole)),
            "beside turnip's dispatch": list(beside(one, client_run)),
        }


def _values() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    numbers = np.arange(COUNT, dtype=np.float32)
    return numbers, numbers + 1000


def ours(chip: str, folder: Path) -> tuple[Recorded, int]:
    """Record our driver; also where the result lies."""
    where = 0

    def work(device: Device) -> None:
        nonlocal where
        image = compile_text(module(_BODY, _PARAMETERS, GROUP), chips.facts(chip).target())
        kernel = device.load(image)["k"]
        a, b, c = (device.alloc(4 * COUNT, placement=Placement.HOST) for _ in range(3))
        for buffer, values in zip((a, b), _values(), strict=True):
            buffer.copy_from(values)
        c.copy_from(np.full(COUNT, -1, np.float32))
        with device.queue() as queue:
            queue.launch(kernel, grid=(COUNT // GROUP,), block=(GROUP,),
                         args=(a, b, c, np.uint32(COUNT), np.float32(FACTOR)))  # fmt: skip
        device.synchronize()
        one, other = _values()
        assert (c.numpy(np.float32) == one * np.float32(FACTOR) + other).all()
        where = c.address

    log = folder / "ours.jsonl"
    attachment = node.attach(f"virtual:{chip}")
    node.record_device(attachment, f"virtual:{chip}", log, calls.DRIVER, work, _SHOTS)
    return _recorded(log), where


def whole_run(chip: str, folder: Path) -> Recorded:
    """Record our driver at copies, launches of compiled kernels and replays of a graph."""
    log = folder / "whole.jsonl"
    attachment = node.attach(f"virtual:{chip}")
    node.record_device(attachment, f"virtual:{chip}", log, calls.DRIVER, command.exercise, _SHOTS)
    return _recorded(log)


def turnips(turnip: Turnip, chip: str, folder: Path) -> Recorded:
    """Record the client under turnip, by the preload library; its first dispatch is ours."""
    log = folder / "turnip.jsonl"
    with served(turnip, chip) as (machine, environment):
        own = [sys.executable, "-m", "tools.cli", "sniff", "--driver", calls.DRIVER, "--backend"]
        own += ["preload", "--prefix", "/memfd:kgsl-3d0", "--memory", str(_SHOTS), "-o", str(log)]
        subprocess.run(
            [*own, "--", *client(turnip)], env=environment, check=True, capture_output=True,
            timeout=LIMIT_S,
        )  # fmt: skip
        assert not objections(machine), objections(machine)
    return _recorded(log)


def _recorded(log: Path) -> Recorded:
    streams = command.streams_of(read(log))
    file = log.with_suffix(".rd")
    rd.write(streams, file)
    return Recorded(streams, file)


# ---- cffdump -------------------------------------------------------------------------------------


def _libraries(turnip: Turnip) -> str:
    """Where the tools' libraries lie: below /usr/lib, and some below /lib."""
    return f"{turnip.libraries}:{turnip.libraries.parents[2]}/lib/{turnip.libraries.name}"


def decoded(turnip: Turnip, file: Path) -> str:
    """What cffdump says of a file."""
    done = subprocess.run(
        [str(turnip.cffdump), "--no-color", "--no-pager", str(file)], capture_output=True,
        text=True, errors="replace", timeout=LIMIT_S, check=False,
        env={"LD_LIBRARY_PATH": _libraries(turnip)},
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(f"cffdump: status {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def by_cffdump(turnip: Turnip, made: Recorded) -> Iterator[str]:
    """Where cffdump and `ugpu sniff` disagree, or cffdump complains."""
    text = decoded(turnip, made.file)
    for line in text.splitlines():
        if _COMPLAINT.search(line):
            yield f"cffdump: {line.strip()}"
    packets = made.streams.packets
    theirs = {int(number, 16): name for name, number in _WRITE.findall(text)}
    values = set(_VALUE.findall(text))  # of a burst, cffdump gives the first offset alone
    written = {offset for one in made.streams.dispatches for offset in one.registers}
    for offset in sorted(written):
        name = packets.register(offset)
        told = theirs.get(offset, "").partition("+")[0]
        if told and not name.startswith("register ") and told not in (name, _HALF.sub("", name)):
            yield f"{offset:#x} is {name} here, {told} there"
        elif offset not in theirs and not {name, _HALF.sub("", name)} & values:
            yield f"cffdump does not see the write of {name} ({offset:#x})"
    yield from _fields(text, made)
    launches = len(re.findall(r"\bCP_EXEC_CS(?:_INDIRECT)?\b", text))
    if launches < len(made.streams.dispatches):
        yield f"cffdump sees {launches} launches of {len(made.streams.dispatches)}"


def _fields(text: str, made: Recorded) -> Iterator[str]:
    """Fields of registers that one names and the other does not."""
    theirs: dict[str, list[set[str]]] = {}
    for name, fields in _FIELDS.findall(text):
        named = {part.partition(" = ")[0].strip() for part in fields.split(" | ")}
        theirs.setdefault(name, []).append(named)
    packets = made.streams.packets
    every = {pair for one in made.streams.dispatches for pair in one.registers.items()}
    for offset, value in sorted(every):
        name = packets.register(offset)
        fields = {each for each, part in packets.fields(offset, value).items() if part}
        if name in theirs and fields and not any(fields <= named for named in theirs[name]):
            yield f"{name}: fields {sorted(fields)} here, {theirs[name]} there"


# ---- replay --------------------------------------------------------------------------------------


def replayed(turnip: Turnip, chip: str, made: Recorded, result: int = 0) -> Iterator[str]:
    """Submit a recording again by freedreno's `replay`; what is wrong then. result: where the
    dispatch's result lies; 0 where it is not looked at."""
    launched, seen = 0, []
    run = Engine._run

    def noted(engine: Engine, submission: object) -> object:
        nonlocal launched
        found = run(engine, submission)
        launched += 1
        if result:
            space = submission.context.node.space
            seen.append(np.frombuffer(space.read(result, 4 * COUNT), np.float32))
        return found

    with mock.patch.object(Engine, "_run", noted), served(turnip, chip) as (machine, environment):
        done = subprocess.run(
            [str(turnip.replay), str(made.file)],
            env={**environment, "LD_LIBRARY_PATH": _libraries(turnip)},
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        if done.returncode:
            yield f"replay: status {done.returncode}: {done.stderr[-300:]}"
        if objections(machine):
            yield f"replay: {objections(machine)}"
    if launched < len(made.streams.submissions):
        yield f"replay: {launched} submissions of {len(made.streams.submissions)}"
    one, other = _values()
    if result and not (seen and (seen[-1] == one * np.float32(FACTOR) + other).all()):
        yield f"replay: the dispatch's result is {seen[-1][:4] if seen else 'not there'}"


# ---- side by side --------------------------------------------------------------------------------


def beside(one: Recorded, other: Recorded) -> Iterator[str]:
    """Registers that differ and are not in DIFFERENCES, and a grid that does. other: of turnip,
    whose client begins with our dispatch."""
    packets = one.streams.packets
    first, second = one.streams.dispatches[-1], other.streams.dispatches[0]
    if first.packet != second.packet:
        yield f"{packets.text(first.packet)} here, {packets.text(second.packet)} there"
    for offset, value in sorted(first.registers.items()):
        name, there = packets.register(offset), second.registers.get(offset)
        if value != there and name not in DIFFERENCES:
            shown = "not written" if there is None else packets.value(offset, there)
            yield f"{name} is {packets.value(offset, value)} here, {shown} there"
