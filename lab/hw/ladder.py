"""An NVIDIA GPU brought up step by step, each step by itself: how far a driver gets where it does
not get through.

python -m lab.hw.ladder FILE [--device nvrm:0]

Each rung is a process of its own with a time of its own, makes what it needs from the start, and
tells facts as they come; FILE (JSON) is written after each. Of a rung that breaks or hangs FILE has
the error with its facts, the last calls to the driver and where its threads stood. Rungs beside
each other do not need each other: where no compute channel can be had, each copy engine is still
tried. Exit code: 0 where all went well, 1 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from lab.hw import calls, machine, process
from lab.hw.sections.faults import UNMAPPED
from tests.support.kernels import contract_object
from tests.support.nvidia import ptx_kernels
from ugpu import hcq
from ugpu.hcq.errors import ChipError, UgpuError
from ugpu.hcq.find import registry
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.transport.node import NodeAttachment
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.command import Copy
from ugpu.hcq.work.command_buffer import Symbol
from ugpu.hcq.work.queue import Queue, QueueKind
from ugpu.nv import abi
from ugpu.nv.abi.events import TOOLS_NODE
from ugpu.nv.code.assemble import find_assembler
from ugpu.nv.code.cubin import parse_cubin
from ugpu.nv.device.device import opener
from ugpu.nv.device.driver import NvDriver
from ugpu.nv.device.sensors import describe
from ugpu.nv.rm.client import CONTROL_NODE, RmClient
from ugpu.nv.rm.memory import allocate
from ugpu.nv.rm.node_gpu import NodeGpu
from ugpu.nv.rm.session import NodeSession, Region
from ugpu.nv.rm.uvm import UVM_NODE
from ugpu.nv.work.queue import ChannelQueue

ROOT = Path(__file__).resolve().parents[2]
RUNG_S = 15.0
#: of all rungs; one more may take what it takes to end it (process.ASKED_S, ENDED_S)
ALL_S = 285.0
COUNT = 1 << 18
#: of the copies whose rates are told, and how many of each are one piece of work
RATE_SIZE, MODEL_SIZE, RATE_COPIES = 64 << 20, 1 << 20, 8
Fact = tuple[str, object]


def attach(device: str) -> NodeAttachment:
    """The driver's files behind the name of a device."""
    kind, _, rest = device.partition(":")
    if kind == "nvrm":
        module, _, name = registry.NODE_DRIVERS["nvrm"].attach.partition(":")
        found = getattr(importlib.import_module(module), name)(int(rest))
    else:
        found = registry.attach_virtual(rest)
    assert isinstance(found, NodeAttachment)
    return found


class Bare(NvDriver):
    """A device without any queue but those that a rung makes."""

    def _bring_up(self) -> None:
        self._identify()

    def channel(self, name: str, kind: QueueKind, engine: int) -> ChannelQueue:
        """One more queue."""
        return self._make_queue(name, kind, engine)

    @property
    def copy_queue(self) -> ChannelQueue:
        """What brings code into memory: a compute channel can copy too."""
        return next(iter(self._queues[QueueKind.COPY]), self.compute_queue)

    def copy_engines(self) -> list[int]:
        """Numbers of copy engines that have a ring of their own."""
        return self.gpu.copy_engines()

    def physical_engines(self, engine: int) -> int:
        """How many physical copy engines work for one; 0 where the driver does not tell."""
        assert isinstance(self.gpu, NodeGpu)
        return self.gpu.physical_engines(engine)


@contextlib.contextmanager
def bare(device: str) -> Iterator[Bare]:
    """A device that only knows what it is."""
    attachment = attach(device)
    made = Bare(device, NodeSession(attachment.node), opener(attachment.index))
    try:
        yield made
    finally:
        made.core.close()


# The rungs


def files(device: str) -> Iterator[Fact]:
    """Which files of the driver may be opened."""
    attachment = attach(device)
    with contextlib.closing(attachment.node) as node:
        for path in (CONTROL_NODE, f"/dev/nvidia{attachment.index}", UVM_NODE, TOOLS_NODE):
            try:
                node.release(node.open(path))
                yield path, "opens"
            except OSError as error:
                yield path, f"{type(error).__name__}: {error}"


def client(device: str) -> Iterator[Fact]:
    """The resource manager: version, a client, its GPUs."""
    attachment = attach(device)
    with contextlib.closing(attachment.node) as node, contextlib.closing(RmClient(node)) as made:
        yield "version", made.version
        yield "branch", made.abi.branch
        yield "a known branch", made.abi.exact
        for card in made.cards():
            yield "GPU", {"minor": int(card.minor_number), "id": int(card.gpu_id)}


def assembler(device: str) -> Iterator[Fact]:
    """What makes machine code, which needs no GPU."""
    found = find_assembler()
    yield "assembler", found.name
    for target in ("sm_75", "sm_86", "sm_90", "sm_90a", "sm_120"):
        try:
            text = ptx_kernels.text(ptx_kernels.CONTRACT, target)
            code = parse_cubin(found.assemble(text, target))
            yield target, {name: each.registers for name, each in code.kernels.items()}
        except UgpuError as error:
            yield target, f"{type(error).__name__}: {error}"


def memory_driver(device: str) -> Iterator[Fact]:
    """UVM: an address space, and a queue of events."""
    with contextlib.closing(NodeSession(attach(device).node)) as session:
        yield "space", session.uvm is not None
        yield "events", session.events.works


def identity(device: str) -> Iterator[Fact]:
    """The GPU: classes, shape, doorbells, and whether its clock goes."""
    attachment = attach(device)
    session = NodeSession(attachment.node)
    with contextlib.closing(NodeGpu(session, attachment.index)) as gpu:
        yield "UUID", gpu.uuid.hex()
        yield "capability", gpu.capability
        yield "SMs, TPCs, GPCs", [gpu.sm_count, gpu.tpcs, gpu.gpcs]
        yield "warps of an SM", gpu.warps_per_sm
        known = gpu.client.abi.classes
        yield (
            "classes",
            sorted(
                known[number].name if number in known else f"{number:#x}" for number in gpu.classes
            ),
        )
        assert gpu.window is not None
        clock = [gpu.window.read32(0x80) for _ in range(2)]
        yield "clock goes", clock[0] != clock[1]
        yield "reads as all ones", gpu.lost()
        yield "instance", str(gpu.instance)
        for key, value in describe(gpu).items():
            yield key, str(value)


def sensors(device: str) -> Iterator[Fact]:
    """What is measured."""
    with bare(device) as made:
        for sensor in made.sensors():
            try:
                yield f"{sensor.name} {sensor.label}".strip(), sensor.read()
            except UgpuError as error:
                yield f"{sensor.name} {sensor.label}".strip(), f"{type(error).__name__}: {error}"
        yield "unpublished", made.unpublished


def memory(device: str) -> Iterator[Fact]:
    """Memory of each kind, mapped for the GPU, and for the host where it should be."""
    with bare(device) as made:
        for placement, reachable, size in (
            (Placement.HOST, True, 4096), (Placement.HOST, True, 64 << 20),
            (Placement.DEVICE, False, 64 << 10), (Placement.DEVICE, False, 64 << 20),
            (Placement.DEVICE, True, 64 << 10), (Placement.DEVICE, True, 4 << 20),
        ):  # fmt: skip
            name = f"{placement.value}, {size >> 10} KiB" + ", for the host too" * reachable
            region = Region.HOST if placement is Placement.HOST else Region.DEVICE
            try:
                taken = allocate(made.gpu, size, placement, region, reachable=reachable)
            except UgpuError as error:
                yield name, f"{type(error).__name__}: {error}"
                continue
            if reachable:
                taken.view[:8] = b"\x12\x34\x56\x78\x9a\xbc\xde\xf0"
                yield name, bytes(taken.view[:8]).hex()
            else:
                yield name, f"at {taken.address:#x}"
            taken.close()


def copy_engines(device: str) -> Iterator[Fact]:
    """A channel on each copy engine, a copy there and back, how fast it copies, and how many
    physical engines work for it."""
    with bare(device) as made:
        engines = made.copy_engines()
        yield "engines", engines
        number = made.gpu.client.constants.NV2080_ENGINE_TYPE_GRAPHICS
        for engine in [*engines, number]:
            told = _copied(made, engine)
            if engine in engines:
                told["physical engines"] = made.physical_engines(engine)
            yield f"engine {engine}", told


def _copied(made: Bare, engine: int) -> dict[str, object]:
    try:
        queue = made.channel(f"engine {engine}", QueueKind.COPY, engine)
        numbers = np.arange(COUNT, dtype=np.uint32)
        with (
            made.core.alloc(4 * COUNT, placement=Placement.HOST) as given,
            made.core.alloc(4 * COUNT) as there,
            made.core.alloc(4 * COUNT, placement=Placement.HOST) as back,
        ):
            assert given.view is not None and back.view is not None
            np.frombuffer(given.view, np.uint32)[:] = numbers
            start = time.perf_counter()
            work = Queue(queue)
            work.commands.append(Copy(Symbol.of(there), Symbol.of(given), 4 * COUNT))
            work.barrier().copy(back, there)
            queue.timeline.wait(work.submit(), limit_s=5)
            spent = time.perf_counter() - start
            right = bool((np.frombuffer(back.view, np.uint32) == numbers).all())
        rates = _rates(made, queue)
        return {"right": right, "seconds": spent, "GB/s": rates, **asdict(queue.progress())}
    except UgpuError as error:
        made.core.reset()
        return {"error": f"{type(error).__name__}: {error}"}


def _rates(made: Bare, queue: ChannelQueue) -> dict[str, float]:
    """GB/s of copies of 64 MiB, on a model of 1 MiB; several at a time, so that what submitting
    takes hardly counts."""
    found = {}
    size = MODEL_SIZE if made.name.startswith("virtual:") else RATE_SIZE
    with (
        made.core.alloc(size, placement=Placement.HOST) as host,
        made.core.alloc(size) as near,
        made.core.alloc(size) as other,
    ):
        for name, destination, source in (
            ("to the device", near, host),
            ("within the device", other, near),
            ("from the device", host, other),
        ):
            times = []
            for copies in (1, RATE_COPIES):  # the first copy may find memory unused
                start = time.perf_counter()
                work = Queue(queue)
                for _ in range(copies):
                    work.copy(destination, source)
                queue.timeline.wait(work.submit(), limit_s=5)
                times.append((time.perf_counter() - start) / copies)
            found[name] = round(size / times[-1] / 1e9, 1)
    return found


def compute(device: str) -> Iterator[Fact]:
    """A compute channel, its first methods, a kernel: commands in video memory."""
    with bare(device) as made:
        yield from _launched(made)


def compute_host(device: str) -> Iterator[Fact]:
    """The same with descriptor and constant bank in host memory."""
    with bare(device) as made:
        made.command_placement = Placement.HOST
        yield from _launched(made)


def _launched(made: Bare) -> Iterator[Fact]:
    """A kernel, and whether it computed what it should; ChipError where it did not."""
    number = made.gpu.client.constants.NV2080_ENGINE_TYPE_GRAPHICS
    queue = made.channel("compute", QueueKind.COMPUTE, number)
    yield "channel", asdict(queue.progress())
    program = made.core.load(contract_object(made.target))
    yield "program", [repr(kernel) for kernel in program.kernels.values()]
    numbers = np.arange(256, dtype=np.uint32)
    with (
        made.core.alloc(1024, placement=Placement.HOST) as given,
        made.core.alloc(1024, placement=Placement.HOST) as out,
    ):
        assert given.view is not None and out.view is not None
        np.frombuffer(given.view, np.uint32)[:] = numbers
        args = (out, given, np.uint32(256), np.uint32(3))
        work = Queue(queue).launch(program["scale"], grid=(4,), block=(64,), args=args)
        queue.timeline.wait(work.submit(), limit_s=5)
        right = bool((np.frombuffer(out.view, np.uint32) == 3 * numbers).all())
        yield "right", right
    yield "after it", asdict(queue.progress())
    if not right:
        raise ChipError("the kernel computed wrongly")


def whole(device: str) -> Iterator[Fact]:
    """The device as everyone opens it, and what opening took."""
    start = time.perf_counter()
    with hcq.open(device) as made:
        yield "seconds", time.perf_counter() - start
        yield "stages", getattr(made, "boot_stages", [])
        yield "info", {key: str(value) for key, value in made.info().items()}


def fault(device: str) -> Iterator[Fact]:
    """What is told of a copy from nowhere and into nowhere."""
    with hcq.open(device) as made, made.alloc(4096) as good:
        bad = Buffer(made.driver.core, VirtAddr(UNMAPPED), 4096, Placement.DEVICE)
        for name, pair in (("read", (good, bad)), ("write", (bad, good))):
            queue = made.queue(QueueKind.COPY).copy(*pair)
            try:
                queue.timeline.wait(queue.submit(), limit_s=5)
                yield name, "nothing happened"
            except ChipError as error:
                facts = {key: str(value) for key, value in error.facts.items()}
                yield name, {"error": f"{type(error).__name__}: {error}", **facts}
            made.reset()


RUNGS: tuple[Callable[[str], Iterator[Fact]], ...] = (
    files, client, assembler, memory_driver, identity, memory, copy_engines, compute, compute_host,
    whole, fault, sensors,
)  # fmt: skip


def climb(
    device: str, file: Path, rungs: Sequence[str], limit_s: float = RUNG_S, all_s: float = ALL_S
) -> bool:
    """Try each rung, for `limit_s` at most and `all_s` together; whether all went well."""
    end = time.monotonic() + all_s
    told: dict[str, object] = {"device": device, "tables": abi.branches()}
    well = True
    for rung in rungs:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            kept = Path(folder) / "last"
            command = [sys.executable, "-m", "lab.hw.ladder", "--rung", rung]
            left = min(limit_s, end - time.monotonic())
            if left > 1:
                done = process.run([*command, "--device", device, str(kept)], left, folder=ROOT)
            else:
                done = process.Ended(None, "", "", "no time was left")
            told[rung] = {
                "trouble": done.trouble,
                "seconds": round(time.monotonic() - begin, 2),
                "facts": list(_facts(done.output)),
                **(_diagnosis(done, kept) if done.trouble else {}),
            }
        well = well and not done.trouble
        if done.trouble:
            told["kernel log"] = machine.kernel_log()
        file.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(f"{rung}: {done.trouble or 'well'}\n")
        sys.stdout.flush()
    return well


def _facts(output: str) -> Iterator[object]:
    """The facts that a rung told; the last one may be cut off."""
    for line in output.splitlines():
        if line.startswith("["):
            with contextlib.suppress(ValueError):
                yield json.loads(line)


def _diagnosis(done: process.Ended, kept: Path) -> dict[str, object]:
    """What a rung that did not go well left."""
    found: dict[str, object] = {"errors": done.errors.splitlines()[-30:], "calls": calls.told(kept)}
    stacks = calls.stacks_of(kept)
    if stacks.exists():
        found["stacks"] = stacks.read_text(encoding="utf-8").splitlines()[:80]
    return found


def try_rung(rung: Callable[[str], Iterator[Fact]], device: str, kept: Path) -> int:
    """One rung in this process: its facts go to standard output. kept: where its last calls go if
    it breaks, or is asked to end."""
    last = calls.LastCalls()
    calls.install(last)
    calls.tell_when_ended(last, kept)

    def tell(fact: Fact) -> None:
        sys.stdout.write(json.dumps(fact, default=str) + "\n")
        sys.stdout.flush()

    try:
        for fact in rung(device):
            tell(fact)
    except Exception as error:
        last.save(kept)
        facts = {key: str(value) for key, value in getattr(error, "facts", {}).items()}
        tell(("error", {"error": f"{type(error).__name__}: {error}", **facts}))
        traceback.print_exc()
        sys.stderr.write(f"{type(error).__name__}: {error}\n")  # the last line names the trouble
        return 1
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m lab.hw.ladder", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = [rung.__name__ for rung in RUNGS]
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", default="nvrm:0")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--seconds", type=float, default=ALL_S, help="default: %(default)s")
    parser.add_argument("--rung", choices=names, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.rung is None:
        well = climb(given.device, given.file, given.only, all_s=given.seconds)
        return 0 if well else 1
    return try_rung(RUNGS[names.index(given.rung)], given.device, given.file)


if __name__ == "__main__":
    sys.exit(main())
