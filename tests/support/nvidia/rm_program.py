"""A small program on the NVIDIA driver's files, written from the documents: for tests of the model.

It shares nothing with our driver. Order of the calls: bring-up as the resource manager and UVM of
open-gpu-kernel-modules 580.142 ask for it.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from tests.support.waiting import came
from ugpu.hcq.transport.node import Node, NodeMapping
from ugpu.nv import abi
from ugpu.nv.abi.note import NOTE_FORMAT, NOTE_MAGIC, NOTE_SIZE, NOTE_VERSION
from ugpu.virtual.nvidia.gpu import attach
from ugpu.virtual.nvidia.machine import VirtualMachine
from ugpu.virtual.nvidia.options import MachineOptions
from ugpu.virtual.nvidia.sm_contract import GridLaunch, SmEnding, SmOutcome
from ugpu.virtual.shader.memory import Abort, LaneMemory

SHARED_WINDOW, LOCAL_WINDOW = 0x7294_0000_0000, 0x7293_0000_0000
NOTIFIER_OFFSET = 0x3000


class RecordingSms:
    """SMs that record what they were asked to run, and answer as told."""

    def __init__(self, facts: object = None) -> None:
        self.launches: list[GridLaunch] = []
        self.answer: Callable[[GridLaunch, LaneMemory, Abort], SmOutcome] = (
            lambda launch, memory, abort: SmOutcome(SmEnding.DONE)
        )
        self.closed = False

    def run(self, launch: GridLaunch, memory: LaneMemory, abort: Abort) -> SmOutcome:
        self.launches.append(launch)
        return self.answer(launch, memory, abort)

    def close(self) -> None:
        self.closed = True


class StatusError(Exception):
    """The resource manager or UVM answered with a status."""

    def __init__(self, status: int) -> None:
        super().__init__(abi.status_name(status))
        self.status = status


def machine_options(driver: str = "580.142", **changes: Any) -> MachineOptions:
    """A machine with SMs that only record."""
    values: dict[str, Any] = {"memory": 256 << 20, "multiprocessors": RecordingSms, **changes}
    return MachineOptions(driver=driver, **values)


class RmProgram:
    """Calls, one by one; `bring_up` makes everything that work needs."""

    def __init__(
        self, chip: str = "gh100", driver: str = "580.142",
        machine: VirtualMachine | None = None, **changes: Any,
    ) -> None:  # fmt: skip
        """A program on a machine of its own, or one more on `machine`."""
        options = None if machine is not None else machine_options(driver, **changes)
        attachment = attach(chip, chip=machine, machine=options)
        self._owns = machine is None
        assert isinstance(attachment.chip, VirtualMachine)
        self.machine = attachment.chip
        self.node: Node = attachment.node
        self.facts = self.machine.facts
        self.table = abi.select(driver)
        self.next_handle = 0x1000
        self.next_address = 0x10_0000_0000

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.node.close()
        if self._owns:
            self.machine.close()

    # Calls

    def call(self, handle: int, name: str, **values: Any) -> Any:
        """An ioctl by name, with its block's fields; the block as it came back."""
        ioctl = self.table.ioctls[name]
        block = self.table.structs[ioctl.struct].new()
        for field, value in values.items():
            setattr(block, field, value)
        self.node.ioctl(handle, self.table.request(name), block.raw)
        return block

    def uvm_call(self, name: str, **values: Any) -> Any:
        """A call of UVM; StatusError unless it went well."""
        block = self.call(self.uvm, name, **values)
        if block.rmStatus:
            raise StatusError(block.rmStatus)
        return block

    def alloc(
        self, parent: int, class_id: int, name: str | None = None, *, handle: int = 0,
        params_size: int | None = None, **values: Any,
    ) -> tuple[int, Any]:  # fmt: skip
        """RM_ALLOC; the handle and the parameters as they came back."""
        params = None
        address = 0
        if name is not None:
            params = self.table.structs[name].new(**values)
            address = address_of(params.raw)
        if not handle:
            self.next_handle += 1
            handle = self.next_handle
        block = self.table.structs.NVOS64_PARAMETERS.new(
            hRoot=self.client, hObjectParent=parent, hObjectNew=handle, hClass=class_id,
            pAllocParms=address,
            paramsSize=params_size if params_size is not None else len(params or ()),
        )  # fmt: skip
        self.node.ioctl(self.ctl, self.table.request("NV_ESC_RM_ALLOC"), block.raw)
        if block.status:
            raise StatusError(block.status)
        return block.hObjectNew, params

    def free(self, handle: int) -> None:
        block = self.call(
            self.ctl, "NV_ESC_RM_FREE", hRoot=self.client, hObjectParent=0, hObjectOld=handle
        )
        if block.status:
            raise StatusError(block.status)

    def control(self, handle: int, name: str, *, params_size: int = -1, **values: Any) -> Any:
        """RM_CONTROL by the header's name; its parameters as they came back."""
        command = self.table.constants[name]
        block_name = self.table.controls[command]
        assert block_name is not None
        layout = self.table.structs[block_name]
        params = layout.new(**values)
        block = self.call(
            self.ctl, "NV_ESC_RM_CONTROL", hClient=self.client, hObject=handle, cmd=command,
            params=address_of(params.raw),
            paramsSize=layout.size if params_size < 0 else params_size,
        )  # fmt: skip
        if block.status:
            raise StatusError(block.status)
        return params

    # Bring-up

    def open_client(self) -> None:
        """Files and a client."""
        self.ctl = self.node.open("/dev/nvidiactl")
        self.client = 0
        block = self.table.structs.NVOS64_PARAMETERS.new(hClass=0x41)
        self.node.ioctl(self.ctl, self.table.request("NV_ESC_RM_ALLOC"), block.raw)
        assert block.status == 0
        self.client = block.hObjectNew

    def open_device(self, index: int = 0) -> None:
        """A device, its subdevice, and UVM."""
        self.gpu_file = self.node.open(f"/dev/nvidia{index}")
        self.call(self.gpu_file, "NV_ESC_REGISTER_FD", ctl_fd=self.ctl)
        self.device, _ = self.alloc(
            self.client, 0x80, "NV0080_ALLOC_PARAMETERS", deviceId=index, hClientShare=self.client
        )
        self.subdevice, _ = self.alloc(self.device, 0x2080, "NV2080_ALLOC_PARAMETERS")
        self.uvm = self.node.open("/dev/nvidia-uvm")
        self.uvm_call("UVM_INITIALIZE")
        gid = self.control(self.subdevice, "NV2080_CTRL_CMD_GPU_GET_GID_INFO", flags=2)
        self.uuid = bytes(gid.data)[:16]
        self.uvm_uuid("UVM_REGISTER_GPU", "gpu_uuid")

    def uvm_uuid(self, name: str, field: str, **values: Any) -> Any:
        """A UVM call whose block names the GPU."""
        layout = self.table.structs[self.table.ioctls[name].struct]
        block = layout.new(**values)
        block[field].raw[:] = self.uuid
        self.node.ioctl(self.uvm, self.table.request(name), block.raw)
        if block.rmStatus:
            raise StatusError(block.rmStatus)
        return block

    def open_space(self) -> None:
        """An address space that UVM manages."""
        self.space, _ = self.alloc(
            self.device, 0x90F1, "NV_VASPACE_ALLOCATION_PARAMETERS", flags=0x48, vaBase=0x1000,
            vaSize=0x1_FFFF_FB00_0000,
        )  # fmt: skip
        self.uvm_uuid(
            "UVM_REGISTER_GPU_VASPACE", "gpuUuid", rmCtrlFd=self.ctl, hClient=self.client,
            hVaSpace=self.space,
        )  # fmt: skip

    def video_memory(self, size: int, *, page: int = 2) -> int:
        """Video memory; `page` as NVOS32_ATTR_PAGE_SIZE numbers it."""
        handle, _ = self.alloc(
            self.device, 0x40, "NV_MEMORY_ALLOCATION_PARAMS", owner=self.client, size=size,
            attr=page << 23 | 2 << 27,
        )  # fmt: skip
        return handle

    def system_memory(self, size: int) -> int:
        """System memory."""
        handle, _ = self.alloc(
            self.device, 0x3E, "NV_MEMORY_ALLOCATION_PARAMS", owner=self.client, size=size,
            attr=1 << 25,
        )  # fmt: skip
        return handle

    def gpu_map(self, memory: int, size: int, *, kind: int = 1, align: int = 2 << 20) -> int:
        """Map memory into the address space; its address."""
        base = -(-self.next_address // align) * align
        self.next_address = base + size
        self.uvm_call("UVM_CREATE_EXTERNAL_RANGE", base=base, length=size)
        self.gpu_map_at(memory, base, size, kind=kind)
        return base

    def gpu_map_at(
        self, memory: int, base: int, size: int, *, offset: int = 0, kind: int = 1
    ) -> None:
        """Map into a range that is there."""
        ioctl = self.table.ioctls["UVM_MAP_EXTERNAL_ALLOCATION"]
        block = self.table.structs[ioctl.struct].new(
            base=base, length=size, offset=offset, gpuAttributesCount=1, rmCtrlFd=self.ctl,
            hClient=self.client, hMemory=memory,
        )  # fmt: skip
        attributes = block.perGpuAttributes[0]
        attributes.gpuUuid.raw[:] = self.uuid
        attributes.gpuMappingType = kind
        self.node.ioctl(self.uvm, ioctl.number, block.raw)
        if block.rmStatus:
            raise StatusError(block.rmStatus)

    def cpu_map(
        self, memory: int, size: int, *, system: bool = False, offset: int = 0
    ) -> NodeMapping:
        """Map memory into this process, through a file of its own."""
        file = self.node.open("/dev/nvidiactl" if system else "/dev/nvidia0")
        block = self.table.structs.nv_ioctl_nvos33_parameters_with_fd.new(fd=file)
        params = block.params
        params.hClient, params.hDevice, params.hMemory = self.client, self.device, memory
        params.offset, params.length = offset, size
        self.node.ioctl(self.ctl, self.table.request("NV_ESC_RM_MAP_MEMORY"), block.raw)
        if params.status:
            raise StatusError(params.status)
        return self.node.map(file, size)

    def open_channel(self, *, entries: int = 64) -> None:
        """A group with a channel that has compute and copy objects, and everything it needs."""
        self.group, _ = self.alloc(
            self.device, 0xA06C, "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS", hVASpace=self.space,
            engineType=1,
        )  # fmt: skip
        self.share, _ = self.alloc(
            self.group, 0x9067, "NV_CTXSHARE_ALLOCATION_PARAMETERS", hVASpace=self.space, flags=1
        )
        self.work = self.system_memory(4 << 20)
        self.work_address = self.gpu_map(self.work, 4 << 20)
        self.work_map = self.cpu_map(self.work, 4 << 20, system=True)
        self.ring_entries = entries
        self.channel, params = self.alloc(
            self.group, self.facts.gpfifo_class, "NV_CHANNEL_ALLOC_PARAMS", **self.channel_values()
        )
        self.channel_number = params.cid
        self.compute, _ = self.alloc(self.channel, self.facts.compute_class)
        self.copy, _ = self.alloc(
            self.channel, self.facts.copy_class, "NVB0B5_ALLOCATION_PARAMETERS", version=1,
            engineType=9,
        )  # fmt: skip
        self.debugger, _ = self.alloc(
            self.device, 0x83DE, "NV83DE_ALLOC_PARAMETERS", hAppClient=self.client,
            hClass3dObject=self.compute,
        )  # fmt: skip
        self.control(self.group, "NVA06C_CTRL_CMD_GPFIFO_SCHEDULE", bEnable=1)
        self.token = self.control(
            self.channel, "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN"
        ).workSubmitToken
        self.uvm_uuid(
            "UVM_REGISTER_CHANNEL", "gpuUuid", rmCtrlFd=self.ctl, hClient=self.client,
            hChannel=self.channel, base=0x20_0000_0000, length=1 << 30,
        )  # fmt: skip
        usermode, _ = self.alloc(self.subdevice, self.facts.usermode_class)
        self.doorbell = self.cpu_map(usermode, 64 << 10)
        self.put = 0
        self.words: list[int] = []
        self.push_at = 0x10_0000

    def channel_values(self) -> dict[str, Any]:
        """Parameters of a channel: ring at 0, USERD behind it, notifier at 0x3000."""
        return {
            "gpFifoOffset": self.work_address,
            "gpFifoEntries": self.ring_entries,
            "hContextShare": self.share,
            "hUserdMemory": [self.work, *[0] * 7],
            "userdOffset": [0x2000, *[0] * 7],
            "hObjectError": self.error_memory(),
        }

    def error_memory(self) -> int:
        """Memory for the error notifier."""
        self.notifier_memory = self.system_memory(4096)
        self.notifier = self.cpu_map(self.notifier_memory, 4096, system=True)
        return self.notifier_memory

    def bring_up(self) -> RmProgram:
        """All of it."""
        self.open_client()
        self.open_device()
        self.open_space()
        self.open_channel()
        self.method(0, 0x0, self.facts.compute_class)
        self.method(4, 0x0, self.facts.copy_class)
        return self

    # Work

    def method(self, subchannel: int, address: int, *values: int) -> None:
        """Methods at ascending addresses."""
        self.words.append(1 << 29 | len(values) << 16 | subchannel << 13 | address >> 2)
        self.words.extend(values)

    def release(
        self, address: int, payload: int, *, wait: bool = True, stamp: bool = False
    ) -> None:
        """A semaphore release of the host unit, 64 bits."""
        flags = 1 | int(wait) << 20 | 1 << 24 | int(stamp) << 25
        self.method(0, 0x5C, address & 0xFFFF_FFFF, address >> 32, payload & 0xFFFF_FFFF,
                    payload >> 32, flags)  # fmt: skip

    def acquire(self, address: int, payload: int, operation: int = 3) -> None:
        """An acquire of the host unit, 64 bits; ACQ_CIRC_GEQ unless told."""
        self.method(0, 0x5C, address & 0xFFFF_FFFF, address >> 32, payload & 0xFFFF_FFFF,
                    payload >> 32, operation | 1 << 24)  # fmt: skip

    def submit(self) -> None:
        """Put the methods into the ring and ring the doorbell."""
        self.submit_words(self.words)
        self.words = []

    def submit_words(self, words: list[int]) -> None:
        """Put words into the ring as one segment, whatever they are."""
        view = self.work_map.view
        assert view is not None
        raw = struct.pack(f"<{len(words)}I", *words)
        view[self.push_at : self.push_at + len(raw)] = raw
        address = self.work_address + self.push_at
        self.push_at += -(-len(raw) // 16) * 16
        self.entry(address & 0xFFFF_FFFF, address >> 32 | len(words) << 10)
        self.ring()

    def entry(self, low: int, high: int) -> None:
        """One entry of the ring, not yet told to the chip."""
        view = self.work_map.view
        assert view is not None
        struct.pack_into("<II", view, 8 * self.put, low, high)
        self.put = (self.put + 1) % self.ring_entries

    def ring(self) -> None:
        """GP_PUT and the doorbell."""
        view = self.work_map.view
        assert view is not None
        struct.pack_into("<I", view, 0x2000 + 0x8C, self.put)
        self.doorbell.write32(0x90, self.token)

    def word(self, offset: int, size: int = 8) -> int:
        """A number in the work memory."""
        view = self.work_map.view
        assert view is not None
        return int.from_bytes(view[offset : offset + size], "little")

    def wait(self, offset: int, value: int) -> None:
        """Wait for a 64-bit semaphore in the work memory."""
        found = came(lambda: self.word(offset) == value)
        assert found, f"{self.word(offset):#x}, not {value:#x}; {self.machine.log}"

    def wait_error(self) -> tuple[int, int]:
        """Wait for the error notifier; info32 and status."""
        view = self.notifier.view
        assert view is not None
        assert came(lambda: any(view[14:16])), f"no error; {self.machine.log}"
        return int.from_bytes(view[8:12], "little"), int.from_bytes(view[14:16], "little")

    # Launches

    def windows(self) -> None:
        """The methods that come before any launch."""
        self.method(0, 0x2A0, SHARED_WINDOW >> 32, SHARED_WINDOW & 0xFFFF_FFFF)
        self.method(0, 0x7B0, LOCAL_WINDOW >> 32, LOCAL_WINDOW & 0xFFFF_FFFF)

    def program(self, ptx: str, entry: str, size: int, *, start: int = 0x210) -> int:
        """Put a program with its note and PTX into the work memory; its address."""
        view = self.work_map.view
        assert view is not None
        text = ptx.encode()
        at, name_at, text_at = 0x30_0000, 0x30_8000, 0x31_0000
        note = struct.pack(
            NOTE_FORMAT, NOTE_MAGIC, NOTE_VERSION, start, size, len(entry),
            self.work_address + text_at, len(text), 0, 0, self.work_address + name_at,
        )  # fmt: skip
        view[name_at : name_at + len(entry)] = entry.encode()
        view[at : at + NOTE_SIZE] = note.ljust(NOTE_SIZE, b"\0")
        view[at + NOTE_SIZE : at + NOTE_SIZE + 128] = b"\x5a" * 128
        view[text_at : text_at + len(text)] = text
        return self.work_address + at + NOTE_SIZE

    def qmd(self, program: int, **changes: int | str) -> bytearray:
        """A launch descriptor of the chip's version: one group of 32 threads."""
        major, minor = self.facts.qmd
        form = abi.qmd(f"{major}.{minor}")
        raw = form.new()
        bank = self.work_address + 0x32_0000
        smallest = self.facts.shared_carveouts[0] // 4096 + 1
        largest = self.facts.shared_carveouts[-1] // 4096 + 1
        fields: dict[str, int | str] = {
            "QMD_MAJOR_VERSION": major, "QMD_GROUP_ID": 0x3F, "API_VISIBLE_CALL_LIMIT": 1,
            "SAMPLER_INDEX": 1, "CTA_THREAD_DIMENSION0": 32, "CTA_THREAD_DIMENSION1": 1,
            "CTA_THREAD_DIMENSION2": 1, "BARRIER_COUNT": 1,
            "MIN_SM_CONFIG_SHARED_MEM_SIZE": smallest, "MAX_SM_CONFIG_SHARED_MEM_SIZE": largest,
            "TARGET_SM_CONFIG_SHARED_MEM_SIZE": largest, "CONSTANT_BUFFER_VALID": 1,
            "CONSTANT_BUFFER_SIZE_SHIFTED4": 0x1000 >> 4,
        }  # fmt: skip
        if major >= 4:
            fields |= {"QMD_MINOR_VERSION": minor, "QMD_TYPE": 2, "REGISTER_COUNT": 32}
            fields |= {"GRID_WIDTH": 1, "GRID_HEIGHT": 1, "GRID_DEPTH": 1}
            fields |= {"CONSTANT_BUFFER_ADDR_LOWER_SHIFTED6": bank >> 6 & 0xFFFF_FFFF}
            fields |= {"CONSTANT_BUFFER_ADDR_UPPER_SHIFTED6": bank >> 38}
        else:
            fields |= {"QMD_VERSION": minor, "REGISTER_COUNT_V": 32}
            fields |= {"CTA_RASTER_WIDTH": 1, "CTA_RASTER_HEIGHT": 1, "CTA_RASTER_DEPTH": 1}
            fields |= {"CONSTANT_BUFFER_ADDR_LOWER": bank & 0xFFFF_FFFF}
            fields |= {"CONSTANT_BUFFER_ADDR_UPPER": bank >> 32}
        if major >= 5:
            fields |= {"PROGRAM_ADDRESS_LOWER_SHIFTED4": program >> 4 & 0xFFFF_FFFF}
            fields |= {"PROGRAM_ADDRESS_UPPER_SHIFTED4": program >> 36}
        else:
            fields |= {"PROGRAM_ADDRESS_LOWER": program & 0xFFFF_FFFF}
            fields |= {"PROGRAM_ADDRESS_UPPER": program >> 32}
        for name, value in (fields | changes).items():
            form.set(raw, name, value)
        return raw

    def put_qmd(self, raw: bytes | bytearray, offset: int = 0x2F_0000) -> int:
        """Put a descriptor into the work memory; its address."""
        view = self.work_map.view
        assert view is not None
        view[offset : offset + len(raw)] = bytes(raw)
        return self.work_address + offset

    def launch(self, qmd_address: int) -> None:
        """The methods that start a grid."""
        self.method(0, 0x2B4, qmd_address >> 8)
        if self.facts.family == "turing":
            self.method(0, 0x2BC, 3)
        else:
            self.method(0, 0x2C0, 3)


def address_of(raw: memoryview) -> int:
    """Where bytes lie in this process."""
    return ctypes.addressof(ctypes.c_char.from_buffer(raw))


def pattern(size: int, seed: int = 1) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes that are nowhere the same."""
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)
