"""KGSL's calls: the memory that belongs to each, and the meaning of a recorded call.

Source: msm_kgsl.h (in Mesa 25.0.7 src/freedreno/vulkan), by the tables in qcom.regs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ugpu.hcq.registers.layout import Layout, Struct
from ugpu.qcom.regs import constants, structs
from ugpu.tools.debug.sniff.decode import Block, Decoded, members
from ugpu.tools.debug.sniff.flags import Flags
from ugpu.tools.debug.sniff.recording import BlockCopy, Call, Recording
from ugpu.tools.debug.sniff.rules import Rules

DRIVER = "kgsl"  # in a recording, in place of NVIDIA's version
PREFIX = "/dev/kgsl-3d"
_CALL, _SIZE = "IOCTL_KGSL_", 0x3FFF
#: the block of a call whose name differs from the call's
_STRUCTS = {
    "DRAWCTXT_BIND_GMEM_SHADOW": "kgsl_bind_gmem_shadow",
    "TIMESTAMP_EVENT_OLD": "kgsl_timestamp_event",
    "CMDSTREAM_FREEMEMONTIMESTAMP_OLD": "kgsl_cmdstream_freememontimestamp",
    "CMDSTREAM_READTIMESTAMP_OLD": "kgsl_cmdstream_readtimestamp",
    "GET_FAULT_REPORT": "kgsl_fault_report",
    "PREEMPTIONCOUNTER_QUERY": "kgsl_preemption_counters_query",
    "SETPROPERTY": "kgsl_device_getproperty",
    "SHAREDMEM_FLUSH_CACHE": "kgsl_sharedmem_free",
    "TIMELINE_QUERY": "kgsl_timeline_val",
}
#: call -> (pointer, number of items, an item's structure or its size in bytes). No number: one.
_LISTS: Mapping[str, tuple[tuple[str, str, str | int], ...]] = {
    "DEVICE_GETPROPERTY": (("value", "sizebytes", 1),),
    "SETPROPERTY": (("value", "sizebytes", 1),),
    "GPU_COMMAND": (
        ("cmdlist", "numcmds", "kgsl_command_object"),
        ("objlist", "numobjs", "kgsl_command_object"),
        ("synclist", "numsyncs", "kgsl_command_syncpoint"),
    ),
    "GPU_AUX_COMMAND": (
        ("cmdlist", "numcmds", "kgsl_gpu_aux_command_generic"),
        ("synclist", "numsyncs", "kgsl_command_syncpoint"),
    ),
    "SUBMIT_COMMANDS": (
        ("cmdlist", "numcmds", "kgsl_ibdesc"),
        ("synclist", "numsyncs", "kgsl_cmd_syncpoint"),
    ),
    "RINGBUFFER_ISSUEIBCMDS": (("ibdesc_addr", "numibs", "kgsl_ibdesc"),),
    # priv_len is the size of the imported object; priv points to an address or a descriptor.
    "GPUOBJ_IMPORT": (("priv", "", "kgsl_gpuobj_import_useraddr"),),
    "GPUOBJ_FREE": (("priv", "len", 1),),
    "GPUOBJ_SYNC": (("objs", "count", "kgsl_gpuobj_sync_obj"),),
    "GPUMEM_SYNC_CACHE_BULK": (("id_list", "count", 4),),
    "PERFCOUNTER_QUERY": (("countables", "count", 4),),
    "PERFCOUNTER_READ": (("reads", "count", "kgsl_perfcounter_read_group"),),
    "GET_FAULT_REPORT": (("faultlist", "faultnents", "kgsl_fault"),),
    "TIMESTAMP_EVENT": (("priv", "len", 1),),
    "TIMELINE_WAIT": (("timelines", "count", "kgsl_timeline_val"),),
    "TIMELINE_SIGNAL": (("timelines", "count", "kgsl_timeline_val"),),
}
#: properties that are a structure
_PROPERTIES = {
    "KGSL_PROP_DEVICE_INFO": "kgsl_devinfo",
    "KGSL_PROP_PWR_CONSTRAINT": "kgsl_device_constraint",
    "KGSL_PROP_VERSION": "kgsl_version",
    "KGSL_PROP_UCODE_VERSION": "kgsl_ucode_version",
    "KGSL_PROP_GPMU_VERSION": "kgsl_gpmu_version",
    "KGSL_PROP_DEVICE_SHADOW": "kgsl_shadowprop",
    "KGSL_PROP_DEVICE_QTIMER": "kgsl_qtimer_prop",
    "KGSL_PROP_GPU_MODEL": "kgsl_gpu_model",
}
_SUBMITS = ("GPU_COMMAND", "SUBMIT_COMMANDS", "RINGBUFFER_ISSUEIBCMDS")


#: (block, member) -> prefix of the names of its bits
_PREFIXES = {
    ("kgsl_gpumem_alloc_id", "flags"): "KGSL_MEMFLAGS_",
    ("kgsl_gpuobj_alloc", "flags"): "KGSL_MEMFLAGS_",
    ("kgsl_gpuobj_import", "flags"): "KGSL_MEMFLAGS_",
    ("kgsl_drawctxt_create", "flags"): "KGSL_CONTEXT_",
    ("kgsl_command_object", "flags"): "KGSL_CMDLIST_",
    ("kgsl_gpu_command", "flags"): "KGSL_CMDBATCH_",
}


def flags() -> Flags:
    """Explains flag words."""
    return Flags(constants("msm_kgsl"), _PREFIXES)


def is_kgsl(driver: str) -> bool:
    """Return whether a recording's driver is KGSL."""
    return driver == DRIVER


def names() -> dict[int, str]:
    """Return every call's name by its number."""
    numbers = constants("msm_kgsl")
    return {numbers[name]: name.removeprefix(_CALL) for name in numbers if name.startswith(_CALL)}


def struct_of(name: str) -> str:
    """Return the structure of a call's block."""
    return _STRUCTS.get(name, f"kgsl_{name.lower()}")


def rules() -> Rules:
    """Return the rules for a recorder: the blocks to copy, and the calls at which to record
    memory."""
    layouts, rules = structs("msm_kgsl"), Rules()
    for number, name in names().items():
        if name in _LISTS:
            layout = layouts[struct_of(name)]
            rules.calls[number] = [
                (
                    layout.offset_of(pointer),
                    layout.offset_of(count) if count else -1,
                    item if isinstance(item, int) else layouts[item].size,
                )
                for pointer, count, item in _LISTS[name]
            ]
        if name in _SUBMITS:
            rules.submits.append(number)
    return rules


class Decoder:
    """Decode calls of one recording. Any bytes can be decoded; unknown ones are shown as bytes."""

    def __init__(self) -> None:
        self._layouts = structs("msm_kgsl")
        self._names = names()
        self._constants = constants("msm_kgsl")

    def all(self, recording: Recording) -> list[Decoded]:
        """Decode every call of a recording."""
        return [self.decode(call) for call in recording.calls]

    def decode(self, call: Call) -> Decoded:
        """Decode one call."""
        if call.kind != "ioctl":
            return Decoded(call, call.kind)
        name = self._names.get(call.request & 0xFFFF_FFFF)
        if name is None:
            raw = Block("", _bytes(call.before), _bytes(call.after))
            return Decoded(call, f"ioctl {call.request:#x}", raw)
        struct = struct_of(name)
        layout = self._layouts.get(struct)
        own = self._block(struct, call.before, call.after, 1)
        remarks = []
        size = call.request >> 16 & _SIZE
        if layout is not None and size != layout.size:
            remarks.append(f"{size} bytes were passed, {struct} has {layout.size}")
        title, value = name, ""
        if name in ("DEVICE_GETPROPERTY", "SETPROPERTY"):
            property_name = self._property((own.before or {}).get("type"))
            title, value = f"{name} {property_name}", _PROPERTIES.get(property_name, "")
        blocks = tuple(self._pointed(copy, layout, name, value) for copy in call.blocks)
        return Decoded(call, title, own, blocks, remarks=tuple(remarks))

    def _property(self, number: object) -> str:
        matching = self._constants.names(number, prefix="KGSL_PROP_") if type(number) is int else []
        return matching[0] if matching else f"property {number}"

    def _pointed(
        self, copy: BlockCopy, layout: Layout[Struct] | None, name: str, value: str
    ) -> Block:
        for pointer, _, item in _LISTS.get(name, ()):
            if layout is not None and layout.offset_of(pointer) == copy.at:
                struct = value or (item if isinstance(item, str) else "")
                many = copy.size // self._layouts[struct].size if struct else 1
                return self._block(struct, copy.before, copy.after, many)
        return Block("", _bytes(copy.before), _bytes(copy.after))

    def _block(self, struct: str, before: bytes | None, after: bytes | None, many: int) -> Block:
        layout = self._layouts.get(struct) if struct else None
        if layout is None:
            return Block("", _bytes(before), _bytes(after))
        return Block(struct, _values(layout, before, many), _values(layout, after, many))


def _bytes(raw: bytes | None) -> dict[str, bytes] | None:
    return None if raw is None else {"bytes": raw}


def _values(
    layout: Layout[Struct], raw: bytes | None, many: int
) -> Mapping[str, int | float | bytes | tuple[int | float, ...]] | None:
    if raw is None or len(raw) < layout.size:
        return _bytes(raw)
    if many <= 1:
        return dict(members(layout.view(raw)))
    return dict(_elements(layout, raw))


def _elements(
    layout: Layout[Struct], raw: bytes
) -> Iterator[tuple[str, int | float | bytes | tuple[int | float, ...]]]:
    for place in range(0, len(raw) - layout.size + 1, layout.size):
        yield from members(layout.view(raw, place), f"[{place // layout.size}].")
