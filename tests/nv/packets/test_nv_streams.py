"""What whole workloads give to channels, and what is asked of the kernel driver from open to close,
against golden files: nothing is refused, nothing is violated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Golden
from tests.support.corpus.workloads import Places, lines_of
from tests.support.kernels import contract_object
from tests.support.nvidia.nv_machine import opened, powered, work
from tests.support.nvidia.nv_streams import Streams, qmd_lines
from ugpu.hcq.work.command import Launch
from ugpu.hcq.work.program import Kernel, Program
from ugpu.nv import abi
from ugpu.nv.code.cubin import KernelCode
from ugpu.nv.device.device import NvDevice
from ugpu.nv.packets.launch import prepare
from ugpu.nv.rm.session import Region
from ugpu.tools.debug.sniff import node
from ugpu.tools.debug.sniff.compare import Step, steps
from ugpu.tools.debug.sniff.decode import Decoder
from ugpu.tools.debug.sniff.recording import read
from ugpu.virtual.nvidia.gpu import attach
from ugpu.virtual.nvidia.machine import VirtualMachine

#: members that the name of a call says again
SAID = ("hClient", "hRoot", "hClass", "cmd", "paramsSize")


def name_queues(device: NvDevice, places: Places) -> None:
    """Name the memory of the device's queues."""
    for queue in device.driver.all_queues():
        places.add(f"{queue.name}.arena", queue.arena.address, queue.arena.size)
        places.add(f"{queue.name}.timeline", queue.timeline.memory.address, 16)


def check_clean(machine: VirtualMachine) -> None:
    """The driver of the machine refused nothing, and nothing was ignored in silence."""
    assert machine.violations == [] and not machine.asked
    # Where the kernel has HMM (Linux, uvm.c uvm_mm_initialize) there is nothing to do.
    assert [text for text in machine.refused if "NOTHING_TO_DO" not in text] == []


@pytest.mark.golden
@pytest.mark.parametrize("chip", ["tu102", "gh100", "gb202"])
def test_streams_of_workloads(chip: str, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header of a program's code, and so its number of registers, is the assembler's."""
    with powered(chip) as machine, opened(machine) as device:
        with device.load(contract_object(device.target)) as program:
            places = Places()
            name_queues(device, places)
            places.add("scale", program["scale"].address, 4)
            streams = Streams(monkeypatch, places)
            lines = lines_of(device, program, places, streams.take)
        check_clean(machine)
    golden.check(f"streams/{chip}.txt", "\n".join(lines))


@pytest.mark.golden
@pytest.mark.parametrize("chip", ["tu102", "ga102", "gh100", "gb202"])
def test_fields_of_launch_descriptors(chip: str, golden: Golden) -> None:
    """All fields of a launch with everything, of a kernel that no assembler has a say in."""
    with powered(chip) as machine, opened(machine) as device:
        family = device.driver.family
        parameters_at = max(family.bank.grid + 12, 0x160 if family.bank.cluster is None else 0x210)
        code = KernelCode(
            "made", text=1, code_size=256, registers=37, barriers=3, stack_size=0x120,
            shared_size=5000, parameters_at=parameters_at, parameters_size=8, arguments=None,
            constants={}, max_threads=0, required_block=None,
        )  # fmt: skip
        program_address, bank_address = 0x123_4567_8900, 0x145_6789_0000
        details = prepare(
            device.driver.gpu, family, device.driver.compute_class, code, address=program_address,
            constants={3: (bank_address, 0x990)}, local_size=0x360, counts_reserved=False,
            carveouts=device.driver.carveouts,
        )  # fmt: skip
        kernel = Kernel(
            name="made", program=Program(device, None), address=program_address, kernarg_size=8,
            arguments=None, local_size=5000, private_size=0x120, details=details,
        )  # fmt: skip
        lines = []
        cluster = None if family.bank.cluster is None else (1, 2, 1)
        for title, launch in {
            "plain": Launch(kernel, (5, 6, 7), (64, 2, 3), bytes(8)),
            "with dynamic shared memory": Launch(kernel, (5, 6, 7), (64, 1, 1), bytes(8), (), 3000),
            "in clusters": Launch(kernel, (5, 6, 7), (96, 1, 1), bytes(8), (), 0, cluster),
        }.items():
            encoded = device.driver.compute_queue.encoder.encode([launch])
            words = np.zeros(len(encoded.words), np.uint32)
            base = Region.COMMANDS.value[0]
            encoded.patch(words, np.full(len(encoded.symbols), base, np.uint64))
            table, places = abi.qmd(family.qmd), Places()
            places.add("image", base, 4 * len(words))
            at = int(words[3]) * 256 - base
            raw = words.tobytes()[at : at + table.size]
            lines += [f"# {title}", *qmd_lines(table, raw, places), ""]
    golden.check(f"qmd/{chip}-{family.qmd}.txt", "\n".join(lines))


def asked(step: Step) -> Iterator[str]:
    """What the driver asks in a call: members that are not zero and that the call's name does not
    say. Of lists of attributes for each GPU, the first: there is one GPU."""
    for name, value in step.members:
        side, _, member = name.partition(" ")
        short = member.partition(".")[2]
        beyond = short.startswith("perGpuAttributes[") and "[0]" not in short
        if side == "in" and short not in SAID and not value.endswith(" zeros") and not beyond:
            yield f"{short} = {value}"


@pytest.mark.golden
@pytest.mark.parametrize("chip", ["tu102", "gh100"])
def test_calls_from_open_to_close(chip: str, golden: Golden, tmp_path: Path) -> None:
    """Every call on RM's and UVM's nodes, with what the driver asks."""
    path = tmp_path / "calls"
    with powered(chip) as machine:
        driver = machine.options.driver
        node.record_device(attach(chip, chip=machine), f"virtual:{chip}", path, driver, work)
        check_clean(machine)
    recording = read(path)
    lines = []
    for step in steps(Decoder(abi.select(driver)).all(recording)):
        lines += [step.key, *(f"    {line}" for line in asked(step))]
    golden.check(f"calls/{chip}.txt", "\n".join(lines) + "\n")
