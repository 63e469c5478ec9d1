"""Our driver on the virtual Adreno: opened by name, it computes without violations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.adreno.mesa import needs_mesa
from tests.virtual.adreno.kgsl_client import machine_of
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.hcq.find.registry import attach_virtual
from ugpu.hcq.transport.node import NodeAttachment
from ugpu.qcom.chips import MODELLED
from ugpu.qcom.device.device import open_device
from ugpu.qcom.packets.pm4 import Stream
from ugpu.virtual.adreno.machine import VirtualMachine
from ugpu.virtual.adreno.msm.node import MsmNode


@needs_mesa
@pytest.mark.parametrize("name", MODELLED)
def test_a_kernel_on_each_chip(name: str) -> None:
    attachment = attach_virtual(name)
    assert isinstance(attachment, NodeAttachment)
    machine = attachment.chip
    assert isinstance(machine, VirtualMachine)
    left = np.arange(300, dtype=np.float32)
    with open_device(f"virtual:{name}", attachment) as device:
        found = (Tensor(left, device=device) * 3 + 1).numpy()
    np.testing.assert_array_equal(found, left * 3 + 1)
    assert machine.engine.submissions
    assert (machine.violations, machine.log, machine.gaps) == ([], [], [])


@needs_mesa
def test_a_constant_length_of_zero_sets_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """tinygrad's KGSL driver writes 256 into the eight bits, and boards compute."""
    write = Stream.write

    def without_length(stream: Stream, name: str, *values: Any, **fields: Any) -> None:
        if name == "HLSQ_CS_CNTL":
            fields["CONSTLEN"] = 0
        write(stream, name, *values, **fields)

    monkeypatch.setattr(Stream, "write", without_length)
    left = np.arange(300, dtype=np.float32)
    with machine_of() as machine:
        with open_device("virtual:a630", attach_virtual("a630", chip=machine)) as device:
            found = (Tensor(left, device=device) * 3.25 + 1.5).numpy()
        assert machine.violations == []
    np.testing.assert_array_equal(found, left * np.float32(3.25) + np.float32(1.5))


def test_opened_by_name() -> None:
    with hcq.open("virtual:a630") as device:
        buffer = device.alloc(4096)
        data = np.arange(1024, dtype=np.uint32)
        buffer.copy_from(data)
        out = np.zeros_like(data)
        buffer.copy_to(out)
        np.testing.assert_array_equal(out, data)


@pytest.mark.parametrize(("name", "least"), [
    ("a630", 4 << 30), ("a630+msm", 4 << 30), ("a740+msm", 4 << 30),
])  # fmt: skip
def test_memory_of_the_model_is_that_of_its_machine(name: str, least: int) -> None:
    with hcq.open(f"virtual:{name}") as device:
        assert device.info()["memory_bytes"] == least
        sensors = {sensor.name: sensor for sensor in device.sensors()}
        assert sensors["memory_total_bytes"].read() == least


def test_msm_gives_no_more_than_its_address_space() -> None:
    """The largest memory of an address space of 4 GiB in a machine of 12."""
    with machine_of() as machine:
        node = MsmNode(machine)
        known = node.read_text
        more = {"/proc/meminfo": f"MemTotal: {12 << 20} kB\n"}
        node.read_text = lambda path: more.get(path) or known(path)  # type: ignore[method-assign]
        with open_device("msm:0", NodeAttachment(node, "msm", 0)) as device:
            assert device.info()["memory_bytes"] == 4 << 30
