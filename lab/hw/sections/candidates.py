"""What might be faster than the default, one candidate at a time, each with a checked result.

A result is named after the work of lab/hw/peer_torch.py that it stands beside, then ": " and the
candidate. Of graphs, fields of the launch descriptor (QMD), which order launches and fetch ahead:
a chain of kernels that read what other groups of the one before wrote shows whether they keep the
order. Of products, the tiles that a search measures. Of copies within the device, kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from lab.hw.budget import Budget, median_s
from lab.hw.report import Result
from lab.hw.sections.matmul import KINDS, SIZE, SMALL
from lab.hw.sections.rates import COPY, MB, SMALL_COPY
from lab.hw.sections.rows import guarded
from ugpu import hcq
from ugpu.compiler import Tensor, jit, tuning
from ugpu.compiler.kernel.choices import shown
from ugpu.hcq.device.device import Device
from ugpu.hcq.work.program import Kernel
from ugpu.nv import abi
from ugpu.nv.device.driver import NvDriver
from ugpu.nv.packets.launch import LaunchDetails

TITLE = "Candidates"
CHAIN, SMALL_CHAIN = 100, 8  # kernels of a graph
REPLAYS = 50  # of a chain, each with other numbers
GRAPH, LAUNCH, WITHIN = (
    "replay of 100 kernels and wait",
    "launch and wait",
    "copy within the device",
)
Fields = Mapping[str, int | str]
#: what CUDA sets on an H100 (docs/tasks.md, nv-launch-rate), apart and together, and less than that
MEMBAR, CHASING = {"CWD_MEMBAR_TYPE": "L1_MEMBAR"}, {"CWD_MEMBAR_TASK_CHASING_ENABLE": "TRUE"}
CONSTANTS = {"CONSTANT_BUFFER_PREFETCH": "PREFETCH_POST"}
PROGRAM = {"PROGRAM_PREFETCH_TYPE": "PREFTECH_POST"}  # spelled as in the header
DESCRIPTORS: Mapping[str, Fields] = {
    "as the driver sets it": {},
    "L1_MEMBAR": MEMBAR,
    "task chasing": CHASING,
    "L1_MEMBAR, task chasing": MEMBAR | CHASING,
    "constants fetched after": CONSTANTS,
    "program fetched after": PROGRAM,
    "all of CUDA's": MEMBAR | CHASING | CONSTANTS | PROGRAM,
    "no barrier": {"CWD_MEMBAR_TYPE": "L1_NONE"},
    "no barrier, task chasing": {"CWD_MEMBAR_TYPE": "L1_NONE"} | CHASING,
    "data cache kept": {"INVALIDATE_SHADER_DATA_CACHE": "FALSE"},
}
BLOCK = 256
# out[i] = given[(i + away) % count] + 1; count is a power of two, `last` one less.
TURNED = """\
.version 8.7
.target {cpu}
.address_size 64
.visible .entry turned(.param .u64 out, .param .u64 given, .param .u32 away, .param .u32 last)
{{
  .reg .b32 %r<8>;
  .reg .b64 %a<4>;
  ld.param.u64 %a0, [out];
  ld.param.u64 %a1, [given];
  ld.param.u32 %r0, [away];
  ld.param.u32 %r1, [last];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.u32 %r5, %r2, %r3, %r4;
  mul.wide.u32 %a2, %r5, 4;
  add.u64 %a0, %a0, %a2;
  add.u32 %r6, %r5, %r0;
  and.b32 %r6, %r6, %r1;
  mul.wide.u32 %a3, %r6, 4;
  add.u64 %a1, %a1, %a3;
  ld.global.u32 %r7, [%a1];
  add.u32 %r7, %r7, 1;
  st.global.u32 [%a0], %r7;
  ret;
}}
"""


def run(device: str, budget: Budget) -> Iterator[Result]:
    """Graphs, launches, copies, products: those that cost least first."""
    with hcq.open(device) as opened:
        share = budget.part(0.25)
        for place, (name, fields) in enumerate(DESCRIPTORS.items()):
            part = share.part(1 / (len(DESCRIPTORS) - place))
            work = partial(described, opened, f"{GRAPH}: {name}", fields, part)
            yield guarded(opened, f"{GRAPH}: {name}", work, TITLE)
        yield guarded(opened, LAUNCH, partial(recorded_launch, opened, budget.part(0.1)), TITLE)
        for kind in (np.uint8, np.uint32, np.uint64):
            name = f"{WITHIN}: a kernel of {np.dtype(kind).name}"
            work = partial(copied, opened, name, kind, budget.part(0.05))
            yield guarded(opened, name, work, TITLE)
        for place, name in enumerate(KINDS):
            yield from products(opened, name, budget.part(1 / (len(KINDS) - place)))


def described(device: Device, name: str, fields: Fields, budget: Budget) -> Result:
    """Run a chain of dependent kernels whose descriptors have other fields."""
    driver = device.driver
    if not isinstance(driver, NvDriver):
        return Result(TITLE, name, "skipped", remark="not an NVIDIA GPU")
    groups = 4 if budget.small else 1 << (2 * device.target.compute_units).bit_length()
    length = SMALL_CHAIN if budget.small else CHAIN
    count = groups * BLOCK
    with device.load(TURNED.format(cpu=device.target.cpu).encode()) as program:
        kernel = program["turned"]
        lacking = set_fields(kernel, driver, fields)
        if lacking:
            return Result(TITLE, name, "skipped", remark=f"this descriptor lacks {lacking}")
        wrong, replays = ordering(device, kernel, count, length, budget.part(0.5))
        # Times are those of small kernels, as in the section of rates.
        seconds, times = chain_time(device, kernel, length, budget)
    remark = f"median of {times}; {replays} chains of {count} numbers"
    if wrong:
        remark += f", {wrong} numbers wrong: the order is lost"
    outcome = "failed" if wrong else "measured"
    return Result(TITLE, name, outcome, seconds * 1e6, "us", remark, "<= 1.0")


def set_fields(kernel: Kernel, driver: NvDriver, fields: Fields) -> str:
    """Set fields of a kernel's descriptor before its first launch; return one that this GPU's
    descriptor lacks, or an empty text."""
    details, table = kernel.details, abi.qmd(driver.family.qmd)
    assert isinstance(details, LaunchDetails)
    missing = next((name for name in fields if name not in table.fields), "")
    qmd = bytearray(details.qmd)
    for name, value in fields.items() if not missing else ():
        table.set(qmd, name, value)
    if "PROGRAM_PREFETCH_TYPE" in fields and not missing:
        # UNSURE: units of 256 bytes for address and size; a recording of CUDA's descriptors beside
        # its code's size would settle it (lab.hw.first_contact has both).
        most = table.field("PROGRAM_PREFETCH_SIZE").maximum
        table.set(qmd, "PROGRAM_PREFETCH_SIZE", min(most, -(-details.code.code_size // 256)))
        table.set(qmd, "PROGRAM_PREFETCH_ADDR_LOWER_SHIFTED", kernel.address >> 8 & 0xFFFF_FFFF)
        table.set(qmd, "PROGRAM_PREFETCH_ADDR_UPPER_SHIFTED", kernel.address >> 40)
    details.qmd = bytes(qmd)
    return missing


def ordering(
    device: Device, kernel: Kernel, count: int, length: int, budget: Budget, ordered: bool = True
) -> tuple[int, int]:
    """Replay a chain in which each kernel reads what distant groups of the one before wrote, with
    other numbers each time; return how many results were wrong, and of how many replays. ordered:
    whether the graph has the barriers that it needs."""
    buffers = [device.alloc(4 * count) for _ in range(3)]  # in turns: stale numbers show
    away = count // 2 + 3 * BLOCK + 1
    with device.capture() as graph, device.queue() as queue:
        for number in range(length):
            args = (
                buffers[(number + 1) % 3], buffers[number % 3], np.uint32(away),
                np.uint32(count - 1),
            )  # fmt: skip
            queue.launch(kernel, grid=(count // BLOCK,), block=(BLOCK,), args=args)
            if ordered:
                queue.barrier()
    random, wrong, replays = np.random.default_rng(9), 0, 0
    for _ in budget.rounds(REPLAYS):
        numbers = random.integers(0, 1 << 31, count, np.uint32)
        buffers[0].copy_from(numbers)
        graph.replay()
        graph.wait()
        wanted = np.roll(numbers, -away * length % count) + np.uint32(length)
        wrong += int((buffers[length % 3].numpy(dtype=np.uint32) != wanted).sum())
        replays += 1
    graph.close()
    for buffer in buffers:
        buffer.close()
    return wrong, replays


def chain_time(device: Device, kernel: Kernel, length: int, budget: Budget) -> tuple[float, int]:
    """Return the median time of a replay of `length` kernels of 64 threads, and of how many."""
    buffers = [device.alloc(256) for _ in range(length + 1)]
    with device.capture() as graph, device.queue() as queue:
        for source, destination in itertools.pairwise(buffers):
            args = (destination, source, np.uint32(0), np.uint32(63))
            queue.launch(kernel, grid=(1,), block=(64,), args=args)
            queue.barrier()

    def replay() -> None:
        graph.replay()
        graph.wait()

    replay()
    result = median_s(replay, budget)
    graph.close()
    for buffer in buffers:
        buffer.close()
    return result


def recorded_launch(device: Device, budget: Budget) -> Result:
    """One kernel as a replay, whose launch is native code."""
    x = Tensor(np.arange(64, dtype=np.float32), device=device).realize()
    work = jit(lambda given: (given * 3).realize())
    for _ in range(3):
        found = work(x)
    right = np.array_equal(found.numpy(), np.arange(64, dtype=np.float32) * 3)
    seconds, times = median_s(partial(_step, device, partial(work, x)), budget)
    outcome = "measured" if right else "failed"
    name = f"{LAUNCH}: a recorded function"
    return Result(TITLE, name, outcome, seconds * 1e6, "us", f"median of {times}", "<= 1.1")


def copied(device: Device, name: str, kind: Any, budget: Budget) -> Result:  # kind: a NumPy type
    """A copy by a kernel, of elements of a type."""
    size = SMALL_COPY if budget.small else COPY
    pattern = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    with device.alloc(size) as near:
        near.copy_from(pattern)
        given = Tensor.from_buffer(near, (size // np.dtype(kind).itemsize,), kind)
        work = jit(lambda x: (x + 0).realize())
        for _ in range(3):
            found = work(given)
        device.synchronize()
        right = np.array_equal(found.numpy().view(np.uint8), pattern)
        seconds, times = median_s(partial(_step, device, partial(work, given)), budget, 50)
    outcome = "measured" if right else "failed"
    remark = f"{size // MB} MB, median of {times}"
    return Result(TITLE, name, outcome, size / seconds / 1e9, "GB/s", remark, ">= 0.95")


def _step(device: Device, work: Callable[[], object]) -> None:
    work()
    device.synchronize()


def products(device: Device, name: str, budget: Budget) -> Iterator[Result]:
    """Each tile that a search of the product's kernels measures, the default first. A candidate
    whose result differs from the default's has failed; the section of products compares the
    default's with NumPy's."""
    size = SMALL if budget.small else SIZE
    random = np.random.default_rng(7)
    arrays = (random.standard_normal((size, size), np.float32) for _ in range(2))
    a, b = (Tensor(each, device=device).to(KINDS[name][0]).realize() for each in arrays)
    with tuning(budget_s=max(0.1, budget.left)) as report:
        (a.tf32() @ b.tf32() if name == "tf32" else a @ b).realize()
        device.synchronize()
    for kernel in report.kernels:
        for trial in () if kernel.found is None else kernel.found.trials:
            title = f"matmul {name}: {kernel.name}, {shown(trial.choices)}"
            seconds, reason = trial.outcome.seconds, trial.outcome.reason
            if seconds is None:
                outcome = "failed" if reason.startswith("another result") else "skipped"
                yield Result(TITLE, title, outcome, remark=reason[:200])
                continue
            rate = 2 * size**3 / seconds / 1e12 if f"_over_{size}_" in kernel.name else None
            remark = f"{seconds * 1e6:.1f} us"
            yield Result(TITLE, title, "measured", rate, "TFLOP/s", remark, ">= 0.95")
