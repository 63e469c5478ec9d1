"""Our driver on the virtual Adreno: opened by name, it computes without violations."""

from __future__ import annotations

import numpy as np
import pytest

import hcq
from compiler import Tensor
from hcq.registry import attach_virtual
from hcq.transport.node import NodeAttachment
from qcom.chips import MODELLED
from qcom.device import open_device
from qcom.virtual.machine import VirtualMachine
from tests.support.adreno import needs_mesa


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


def test_opened_by_name() -> None:
    with hcq.open("virtual:a630") as device:
        buffer = device.alloc(4096)
        data = np.arange(1024, dtype=np.uint32)
        buffer.copy_from(data)
        out = np.zeros_like(data)
        buffer.copy_to(out)
        np.testing.assert_array_equal(out, data)
