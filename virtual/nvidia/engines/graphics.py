"""A 3D class: state and the macro method expander. Nothing is drawn.

Methods are checked against the class's header. Those named SET_ are state and are kept; the others
act, and each that is not named here ends the channel: "not modelled". Sources: open-gpu-doc
classes/3d; Mesa src/nouveau/vulkan/nvk_cmd_draw.c (SET_FALCON04: the firmware of the graphics
engine changes a privileged register, with value and mask from the first scratch words, and sets the
first to 1). UNSURE: which registers the firmware lets a program change; the model keeps all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ugpu.nv import abi
from ugpu.virtual.nvidia.engines.coherence import Scope
from ugpu.virtual.nvidia.engines.mme import MACROS, Mme
from ugpu.virtual.nvidia.faults import Fault, Xid
from ugpu.virtual.nvidia.host.errors import ChannelError
from ugpu.virtual.nvidia.host.semaphore import store
from ugpu.virtual.nvidia.host.state import ChannelState
from ugpu.virtual.nvidia.memory.faults import Client

# Classes with a table of methods; two headers have the same.
TABLES = {0xC597: 0xC597, 0xC697: 0xC697, 0xC797: 0xC797, 0xC997: 0xC797}
# They wait, order, or drop caches: without drawings there is nothing to wait for. The last ones are
# state too: of the rasteriser, of tables that only drawings read.
_HARMLESS = (
    "NO_OPERATION", "WAIT_FOR_IDLE", "INVALIDATE_", "CHECK_", "PIPE_NOP", "SEND_GO_IDLE", "FLUSH_",
    "FE_ATOMIC_SEQUENCE_", "PIXEL_SHADER_BARRIER", "MME_DMA_SYSMEMBAR", "MME_DMA_SYNC",
    "MME_DMA_WRITE_METHOD_BARRIER", "THROTTLE_SM", "OGL_SET_", "D3D_SET_", "LOAD_ROOT_TABLE",
    "LOAD_CONSTANT_BUFFER_OFFSET", "BIND_GROUP_", "UNBIND_ALL", "LOAD_ITERATED_BLEND_INSTRUCTION",
)  # fmt: skip
_SCRATCH = 3  # words of the message to the firmware: done, value, mask
_MOST_FETCHED = 1024  # words. Source: Mesa's simulator


@cache
def _kinds(class_id: int) -> dict[int, tuple[str, int, int]]:
    """Return name, element and defined bits of every method, by offset."""
    table = abi.methods(TABLES[class_id])
    kinds: dict[int, tuple[str, int, int]] = {}
    for address in range(0x100, 0x4000, 4):
        found = table.find(address)
        if found is not None:
            method, element = found
            kinds[address] = method.name, element, ~method.undefined(0xFFFF_FFFF)
    return kinds


class GraphicsEngine:
    """A 3D object on a channel. Only its runlist's thread serves it. registers: what the firmware
    changed for programs."""

    def __init__(self, channel: ChannelState, class_id: int) -> None:
        self.class_id = class_id
        self.registers: dict[int, int] = {}
        self.mme = Mme(self)
        self._channel = channel
        self._kinds = _kinds(class_id)
        self._values: dict[int, int] = {}
        self._fetched: list[int] = []
        table = abi.methods(TABLES[class_id])
        self._offset = {
            name: table.method(name).offset
            for name in (
                "SET_MME_SHADOW_SCRATCH", "SET_MME_MEM_ADDRESS_A", "SET_MME_MEM_ADDRESS_B",
                "SET_REPORT_SEMAPHORE_A", "SET_REPORT_SEMAPHORE_B", "SET_REPORT_SEMAPHORE_C",
                "SET_CONSTANT_BUFFER_SELECTOR_A", "SET_CONSTANT_BUFFER_SELECTOR_B",
                "SET_CONSTANT_BUFFER_SELECTOR_C", "LOAD_CONSTANT_BUFFER_OFFSET",
            )
        }  # fmt: skip
        mme = self.mme
        self._actions: dict[str, Callable[[int], None]] = {
            "LOAD_MME_INSTRUCTION_RAM_POINTER": mme.point, "LOAD_MME_INSTRUCTION_RAM": mme.load,
            "LOAD_MME_START_ADDRESS_RAM_POINTER": mme.point_start,
            "LOAD_MME_START_ADDRESS_RAM": mme.load_start, "CALL_MME_DATA": mme.parameter,
            "MME_DMA_READ_FIFOED": self._fetch, "SET_REPORT_SEMAPHORE_D": self._report,
            "SET_FALCON04": self._change_register, "LOAD_CONSTANT_BUFFER": self._load_constant,
        }  # fmt: skip

    def close(self) -> None:
        """Release the object."""
        coherence = self._channel.gpu.machine.coherence
        if coherence is not None:
            coherence.gone(self)

    def drain(self) -> None:
        """Nothing runs on."""

    def burst(self, address: int, words: tuple[int, ...]) -> None:
        """Execute methods at ascending addresses."""
        for value in words:
            self.method(address, value)
            address += 4

    def method(self, address: int, value: int) -> None:
        """Execute one method of the push buffer. Raises ChannelError."""
        name = self._kinds.get(address, ("",))[0]
        if self.mme.waits and name != "CALL_MME_DATA":
            raise ChannelError(
                Xid.GR_EXCEPTION, f"MME: {name or hex(address)} while a macro waits for parameters"
            )
        self._execute(address, value)

    # For macros

    def expanded(self, address: int, value: int) -> None:
        """See mme.Port."""
        name = self._kinds.get(address, ("",))[0]
        if name.startswith(("CALL_MME", "LOAD_MME")):
            raise ChannelError(Xid.GR_EXCEPTION, f"MME: a macro sent {name}")
        self._execute(address, value)

    def state(self, address: int) -> int:
        """See mme.Port."""
        if address not in self._kinds:
            raise self._unknown(address)
        return self._values.get(address, 0)

    def fetched(self) -> list[int]:
        """See mme.Port."""
        words, self._fetched = self._fetched, []
        return words

    # Methods

    def _execute(self, address: int, value: int) -> None:
        kind = self._kinds.get(address)
        gpu = self._channel.gpu
        if kind is None or gpu.machine.faults.take(Fault.CLASS_ERROR, gpu.index):
            raise self._unknown(address)
        name, element, defined = kind
        if value & ~defined:
            raise ChannelError(
                Xid.GR_EXCEPTION,
                f"class {self.class_id:04x} {name} = {value:#010x}: reserved bits are set",
            )
        self._values[address] = value
        action = self._actions.get(name)
        if name == "CALL_MME_MACRO":
            self.mme.call(element % MACROS, value)
        elif action is not None:
            action(value)
        elif name.startswith("SET_FALCON") or not name.startswith(("SET_", *_HARMLESS)):
            raise ChannelError(
                Xid.GR_EXCEPTION, f"class {self.class_id:04x} {name} = {value:#x} is not modelled"
            )

    def _unknown(self, address: int) -> ChannelError:
        text = f"class {self.class_id:04x} has no method {address:#06x}"
        return ChannelError(Xid.CLASS_ERROR, text)

    def _pair(self, high: str, low: str) -> int:
        values, at = self._values, self._offset
        return values.get(at[high], 0) << 32 | values.get(at[low], 0)

    def _change_register(self, register: int) -> None:
        first = self._offset["SET_MME_SHADOW_SCRATCH"]
        _, value, mask = (self._values.get(first + 4 * i, 0) for i in range(_SCRATCH))
        old = self.registers.get(register, 0)
        self.registers[register] = old & ~mask | value & mask
        self._values[first] = 1

    def _fetch(self, count: int) -> None:
        if not 0 < count + len(self._fetched) <= _MOST_FETCHED:
            raise ChannelError(Xid.GR_EXCEPTION, f"MME_DMA_READ_FIFOED of {count} words")
        address = self._pair("SET_MME_MEM_ADDRESS_A", "SET_MME_MEM_ADDRESS_B")
        raw = self._channel.space.read(address, 4 * count, Client.FRONT_END)
        self._fetched += [int.from_bytes(raw[i : i + 4], "little") for i in range(0, len(raw), 4)]

    def _load_constant(self, value: int) -> None:
        """Write the next word of the selected constant buffer."""
        at = self._offset["LOAD_CONSTANT_BUFFER_OFFSET"]
        offset = self._values.get(at, 0)
        size = self._values.get(self._offset["SET_CONSTANT_BUFFER_SELECTOR_A"], 0)
        if offset + 4 > size:
            raise ChannelError(
                Xid.GR_EXCEPTION, f"LOAD_CONSTANT_BUFFER at {offset:#x} of {size:#x} bytes"
            )
        base = self._pair("SET_CONSTANT_BUFFER_SELECTOR_B", "SET_CONSTANT_BUFFER_SELECTOR_C")
        self._channel.space.write(base + offset, value.to_bytes(4, "little"), Client.FRONT_END)
        self._values[at] = offset + 4

    def _report(self, value: int) -> None:
        """SET_REPORT_SEMAPHORE_D: a release of the payload. Counters are of drawings."""
        operation, counter, reduction = value & 3, value >> 23 & 0x1F, value >> 3 & 1
        if operation or counter or reduction:
            raise ChannelError(
                Xid.GR_EXCEPTION, f"SET_REPORT_SEMAPHORE_D {value:#x} is not modelled"
            )
        address = self._pair("SET_REPORT_SEMAPHORE_A", "SET_REPORT_SEMAPHORE_B")
        payload = self._values.get(self._offset["SET_REPORT_SEMAPHORE_C"], 0)
        channel = self._channel
        channel.barrier(self, Scope.SYSTEM)
        channel.released(address, "a report")
        stamp = None if value >> 28 & 1 else channel.gpu.time_ns()
        store(channel.space, Client.FRONT_END, address, payload, 4, stamp)
        channel.gpu.kick()


class UnmodelledEngine:
    """A class of which objects can be made and bound, but whose methods are not modelled."""

    def __init__(self, channel: ChannelState, class_id: int) -> None:
        self.class_id = class_id

    def method(self, address: int, value: int) -> None:
        """Refuse a method."""
        text = f"class {self.class_id:04x}: method {address:#x} is not modelled"
        raise ChannelError(Xid.CLASS_ERROR, text)

    def burst(self, address: int, words: tuple[int, ...]) -> None:
        """Refuse methods."""
        self.method(address, words[0])

    def drain(self) -> None:
        """Do nothing: no work was started."""

    def close(self) -> None:
        """Do nothing."""
