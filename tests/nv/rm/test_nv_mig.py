"""Entering an instance of a divided GPU, call by call, with a client of the test's own."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ugpu.hcq.errors import AccessDenied, BadArgument, DeviceNotFound, DriverRefused
from ugpu.nv import abi
from ugpu.nv.rm.gpu import Gpu
from ugpu.nv.rm.mig import enter_instance

TABLE = abi.select("580.142")
FOLDER = "/proc/driver/nvidia/capabilities/gpu2/mig"


class FakeClient:
    """Two GPU instances, 3 with compute instances 0 and 1, 5 with 0; only 3/1 may be opened."""

    def __init__(self, refuse: bool = False) -> None:
        self.structs, self.constants = TABLE.structs, TABLE.constants
        self.node = self
        self.refuse = refuse
        self.files: dict[int, str] = {}
        self.allocated: list[tuple[int, str, Any]] = []
        self.minors = {
            f"{FOLDER}/gi3/access": 30, f"{FOLDER}/gi3/ci0/access": 31,
            f"{FOLDER}/gi3/ci1/access": 32, f"{FOLDER}/gi5/access": 50,
            f"{FOLDER}/gi5/ci0/access": 51,
        }  # fmt: skip

    def control(self, handle: int, command: str, block: Any) -> None:
        assert command == "NV2080_CTRL_CMD_GPU_GET_INFO_V2"
        block.gpuInfoList[0].data = self.constants.NV2080_CTRL_GPU_INFO_GPU_SMC_MODE_ENABLED

    def read_text(self, path: str) -> str:
        if path not in self.minors:
            raise FileNotFoundError(path)
        return f"DeviceFileMinor: {self.minors[path]}\nDeviceFileMode: 256\nDeviceFileModify: 1\n"

    def open(self, path: str) -> int:
        match = re.fullmatch(r"/dev/nvidia-caps/nvidia-cap(\d+)", path)
        assert match is not None
        if int(match[1]) not in (30, 32):
            raise PermissionError(path)
        self.files[100 + len(self.files)] = path
        return 99 + len(self.files)

    def release(self, handle: int) -> None:
        del self.files[handle]

    def allocate(self, parent: int, kind: str, block: Any) -> int:
        if self.refuse:
            raise DriverRefused("in use", status="NV_ERR_STATE_IN_USE")
        assert block.capDescriptor in self.files
        self.allocated.append((parent, kind, block))
        return 1000 + len(self.allocated)


def gpu(client: FakeClient) -> Gpu:
    made = SimpleNamespace(client=client, index=2, path="/dev/nvidia2", subdevice=77)
    return cast(Gpu, made)


def test_an_instance_is_entered_by_its_capabilities() -> None:
    client = FakeClient()
    instance = enter_instance(gpu(client), "3/1")
    assert instance is not None
    assert (instance.gpu_instance, instance.compute_instance) == (3, 1)
    (parent, outer, first), (below, inner, second) = client.allocated
    assert (parent, outer, first.swizzId) == (77, "AMPERE_SMC_PARTITION_REF", 3)
    assert (below, inner, second.execPartitionId) == (1001, "AMPERE_SMC_EXEC_PARTITION_REF", 1)
    assert (instance.partition, instance.execution) == (1001, 1002)
    assert not client.files


def test_instances_are_listed() -> None:
    for name, error, words in (
        (None, BadArgument, "has: 3/0, 3/1, 5/0"),
        ("4/0", DeviceNotFound, "no instance 4/0; available: 3/0"),
        ("3/7", DeviceNotFound, "no instance 3/7"),
        ("three", BadArgument, "mig='3/0'"),
    ):
        client = FakeClient()
        with pytest.raises(error, match=re.escape(words)):
            enter_instance(gpu(client), name)
        assert not client.files


def test_an_instance_that_is_not_ours_is_refused() -> None:
    client = FakeClient()
    with pytest.raises(AccessDenied, match="nvidia-cap31"):
        enter_instance(gpu(client), "3/0")
    assert not client.files
    busy = FakeClient(refuse=True)
    with pytest.raises(DriverRefused, match="in use"):
        enter_instance(gpu(busy), "3/1")
    assert not busy.files
