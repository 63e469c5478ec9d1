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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from lab.turnip.build import Turnip
from lab.turnip.judge import LIMIT_S, client, objections, served
from tests.support.adreno.mesa import module
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.buffer import Buffer
from ugpu.qcom import chips
from ugpu.tools.debug.sniff import command, node
from ugpu.tools.debug.sniff.kgsl import calls, rd
from ugpu.tools.debug.sniff.kgsl.streams import Streams
from ugpu.tools.debug.sniff.recording import read
from ugpu.virtual.adreno.engine import Engine

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
# For images of 64 x 4 texels, at (x, y): what is sampled at (x, y) goes behind the first component.
_PICTURE = """
define spir_kernel void @k(
    ptr addrspace(1) "adreno-image"="32_float 64x4 256" "adreno-sampler"="linear edge texels" %in,
    ptr addrspace(1) "adreno-image"="8_8_8_8_unorm 64x4 256" %out) #0 {
  %x = call i32 @adreno.thread()
  %y = call i32 @adreno.group.x()
  %column = uitofp i32 %x to float
  %row = uitofp i32 %y to float
  %v = fadd float %row, 0.5
  %sample = call <4 x float> @adreno.image.sample(ptr addrspace(1) %in, float %column, float %v)
  %texel = call <4 x float> @adreno.image.load(ptr addrspace(1) %out, i32 %x, i32 %y)
  %one = extractelement <4 x float> %sample, i32 0
  %both = insertelement <4 x float> %texel, float %one, i32 1
  call void @adreno.image.store(ptr addrspace(1) %out, i32 %x, i32 %y, <4 x float> %both)
  ret void
}
declare i32 @adreno.thread()
declare i32 @adreno.group.x()
declare <4 x float> @adreno.image.sample(ptr addrspace(1), float, float)
declare <4 x float> @adreno.image.load(ptr addrspace(1), i32, i32)
declare void @adreno.image.store(ptr addrspace(1), i32, i32, <4 x float>)
attributes #0 = { nounwind "adreno-threads"="64" }
"""
# What this release of Mesa does not know, and later ones do: instructions that Mesa 25.2.7 puts
# behind stores to images (lock, unlock), and where generation 7 has SP_CS_IBO.
_NEWER = ("no match: e405010400000008", "no match: e41500a000000000")
_MOVED = {"SP_CS_IBO_LO", "SP_CS_IBO_HI"}
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


@dataclass
class Result:
    """What a dispatch leaves in memory: where, once it has run, and the bytes."""

    address: int
    content: bytes

    def check(self, buffer: Buffer) -> None:
        """Compare a buffer, and remember where it is."""
        assert buffer.numpy(np.uint8).tobytes() == self.content
        self.address = buffer.address


def judged(turnip: Turnip, chip: str) -> dict[str, list[str]]:
    """What is wrong with our streams, by what was tried."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one, result = ours(chip, folder)
        images, picture = pictures(chip, folder)
        whole = whole_run(chip, folder)
        client_run = turnips(turnip, chip, folder)
        return {
            "cffdump, one dispatch": list(by_cffdump(turnip, one)),
            "replay, one dispatch": list(replayed(turnip, chip, one, result)),
            "cffdump, images": list(by_cffdump(turnip, images)),
            "replay, images": list(replayed(turnip, chip, images, picture)),
            "cffdump, launches, copies and graphs": list(by_cffdump(turnip, whole)),
            "replay of them": list(replayed(turnip, chip, whole)),
            "beside turnip's dispatch": list(beside(one, client_run)),
        }


def _values() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    numbers = np.arange(COUNT, dtype=np.float32)
    return numbers, numbers + 1000


def ours(chip: str, folder: Path) -> tuple[Recorded, Result]:
    """Record our driver at the client's first dispatch; also its result."""
    one, other = _values()
    result = Result(0, (one * np.float32(FACTOR) + other).tobytes())

    def work(device: Device) -> None:
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
        result.check(c)

    return _run(chip, folder / "ours.jsonl", work), result


def pictures(chip: str, folder: Path) -> tuple[Recorded, Result]:
    """Record our driver at a launch that samples an image, loads texels of another and stores
    texels to that; also the stored ones."""
    values = np.arange(COUNT, dtype=np.float32).reshape(4, 64) / COUNT
    before = np.concatenate([values[:, :1], values[:, :-1]], axis=1)  # at an edge between two
    texels = np.arange(COUNT, dtype=np.uint32)
    green = np.rint((values + before) / 2 * 255).astype(np.uint32).ravel()
    result = Result(0, (texels | green << 8).tobytes())

    def work(device: Device) -> None:
        kernel = device.load(compile_text(_PICTURE, chips.facts(chip).target()))["k"]
        given, out = (device.alloc(4 * COUNT, placement=Placement.HOST) for _ in range(2))
        given.copy_from(values)
        out.copy_from(texels)
        with device.queue() as queue:
            queue.launch(kernel, grid=(4,), block=(64,), args=(given, out))
        device.synchronize()
        result.check(out)

    return _run(chip, folder / "pictures.jsonl", work), result


def whole_run(chip: str, folder: Path) -> Recorded:
    """Record our driver at copies, launches of compiled kernels and replays of a graph."""
    return _run(chip, folder / "whole.jsonl", command.exercise)


def _run(chip: str, log: Path, work: Callable[[Device], object]) -> Recorded:
    attachment = node.attach(f"virtual:{chip}")
    node.record_device(attachment, f"virtual:{chip}", log, calls.DRIVER, work, _SHOTS)
    return _recorded(log)


def turnips(turnip: Turnip, chip: str, folder: Path) -> Recorded:
    """Record the client under turnip, by the preload library; its first dispatch is ours."""
    log = folder / "turnip.jsonl"
    with served(turnip, chip) as (machine, environment):
        own = [
            sys.executable,
            "-m",
            "ugpu.tools.cli",
            "sniff",
            "--driver",
            calls.DRIVER,
            "--backend",
        ]
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
        if _COMPLAINT.search(line) and not line.endswith(_NEWER):
            yield f"cffdump: {line.strip()}"
    packets = made.streams.packets
    theirs = {int(number, 16): name for name, number in _WRITE.findall(text)}
    values = set(_VALUE.findall(text))  # of a burst, cffdump gives the first offset alone
    written = {offset for one in made.streams.dispatches for offset in one.registers}
    for offset in sorted(written):
        name = packets.register(offset)
        if name in _MOVED and theirs.get(offset) in (None, f"{offset:#x}"):
            continue
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


def replayed(
    turnip: Turnip, chip: str, made: Recorded, result: Result | None = None
) -> Iterator[str]:
    """Submit a recording again by freedreno's `replay`; what is wrong then. result: of the
    dispatch; None where it is not looked at."""
    launched, seen = 0, b""
    run = Engine._run

    def noted(engine: Engine, submission: object) -> object:
        nonlocal launched, seen
        found = run(engine, submission)
        launched += 1
        if result:
            space = submission.context.node.space
            seen = bytes(space.read(result.address, len(result.content)))
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
    if result and seen != result.content:
        yield f"replay: the dispatch's result begins with {seen[:16].hex() or 'nothing'}"


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
