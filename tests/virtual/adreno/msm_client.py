"""A client of msm for tests: calls by structures of msm_drm.h, packets by hand."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from ugpu.hcq.uapi import constants, structs
from ugpu.virtual.adreno.machine import VirtualMachine
from ugpu.virtual.adreno.msm.node import MsmNode

CODES = constants("msm_drm")
READ, WRITE = 1, 2
GEM_CLOSE = 0x4008_6409


class MsmClient:
    """One program with the render node open."""

    def __init__(self, machine: VirtualMachine) -> None:
        self.node = MsmNode(machine)
        self.handle = self.node.open("/dev/dri/renderD128")
        self.objects: list[GemBuffer] = []

    def call(self, name: str, structure: str, **values: Any) -> Any:
        layout = structs("msm_drm")[structure]
        raw = bytearray(bytes(layout.new(**values)))
        self.node.ioctl(self.handle, CODES[f"DRM_IOCTL_MSM_{name}"], raw)
        return layout.view(raw)

    def parameter(self, number: int, **more: int) -> int:
        values = {"pipe": 0x10, "param": number, **more}
        return int(self.call("GET_PARAM", "drm_msm_param", **values).value)

    def info(self, handle: int, number: int, value: int = 0, **more: int) -> int:
        found = self.call(
            "GEM_INFO", "drm_msm_gem_info", handle=handle, info=number, value=value, **more
        )
        return int(found.value)

    def alloc(self, size: int = 4096, flags: int = 0x20000) -> GemBuffer:
        made = self.call("GEM_NEW", "drm_msm_gem_new", size=size, flags=flags)
        found = GemBuffer(self, made.handle, size)
        self.objects.append(found)
        return found

    def close(self, buffer: GemBuffer) -> None:
        self.node.ioctl(self.handle, GEM_CLOSE, bytearray(struct.pack("<II", buffer.handle, 0)))

    def queue(self, **values: int) -> int:
        return int(self.call("SUBMITQUEUE_NEW", "drm_msm_submitqueue", **values).id)

    def close_queue(self, number: int) -> None:
        raw = bytearray(struct.pack("<I", number))
        self.node.ioctl(self.handle, CODES.DRM_IOCTL_MSM_SUBMITQUEUE_CLOSE, raw)

    def faults(self, queue: int = 0) -> int:
        out = ctypes.create_string_buffer(4)
        self.call(
            "SUBMITQUEUE_QUERY", "drm_msm_submitqueue_query", data=ctypes.addressof(out), id=queue,
            len=4,
        )  # fmt: skip
        return int(struct.unpack("<I", out.raw)[0])

    def submit(
        self, commands: list[tuple[int, int, int]], objects: list[tuple[int, int]], queue: int = 0,
        **more: Any,
    ) -> int:  # fmt: skip
        """commands: (object's place in the list, first byte, bytes). objects: (handle, flags)."""
        layouts = structs("msm_drm")
        bos = b"".join(
            bytes(layouts.drm_msm_gem_submit_bo.new(flags=flags, handle=handle))
            for handle, flags in objects
        )
        cmds = b"".join(
            bytes(layouts.drm_msm_gem_submit_cmd.new(
                type=more.pop("type", 1), submit_idx=place, submit_offset=start, size=size,
                nr_relocs=more.pop("nr_relocs", 0),
            ))
            for place, start, size in commands
        )  # fmt: skip
        kept = ctypes.create_string_buffer(bos), ctypes.create_string_buffer(cmds)
        values = {
            "flags": 0x10, "nr_bos": len(objects), "nr_cmds": len(commands),
            "bos": ctypes.addressof(kept[0]), "cmds": ctypes.addressof(kept[1]), "queueid": queue,
            **more,
        }  # fmt: skip
        return int(self.call("GEM_SUBMIT", "drm_msm_gem_submit", **values).fence)

    def wait(self, fence: int, queue: int = 0, limit_s: float = 20.0, **more: int) -> None:
        layout = structs("msm_drm").drm_msm_wait_fence
        call = layout.new(fence=fence, queueid=queue, **more)
        end = self.node.clock.now() + limit_s
        call.timeout.tv_sec, call.timeout.tv_nsec = int(end), int(end % 1 * 1e9)
        raw = bytearray(bytes(call))
        self.node.ioctl(self.handle, CODES.DRM_IOCTL_MSM_WAIT_FENCE, raw)

    def start(self, words: list[int], *others: GemBuffer, queue: int = 0) -> int:
        """Submit words; `others` are what they write."""
        commands = self.alloc(max(4096, 4 * len(words)))
        commands.write(words)
        objects = [(commands.handle, READ), *((other.handle, WRITE) for other in others)]
        return self.submit([(0, 0, 4 * len(words))], objects, queue)

    def run(self, words: list[int], *others: GemBuffer, queue: int = 0) -> int:
        """`start`, and wait."""
        fence = self.start(words, *others, queue=queue)
        self.wait(fence, queue)
        return fence


class GemBuffer:
    def __init__(self, client: MsmClient, handle: int, size: int) -> None:
        self.handle = handle
        self.address = client.info(handle, CODES.MSM_INFO_GET_IOVA)
        offset = client.info(handle, CODES.MSM_INFO_GET_OFFSET)
        self.mapping = client.node.map(client.handle, size, offset)

    def write(self, words: list[int], offset: int = 0) -> None:
        assert self.mapping.view is not None
        struct.pack_into(f"<{len(words)}I", self.mapping.view, offset, *words)

    def read(self, count: int = 1, offset: int = 0) -> list[int]:
        assert self.mapping.view is not None
        return list(struct.unpack_from(f"<{count}I", self.mapping.view, offset))
