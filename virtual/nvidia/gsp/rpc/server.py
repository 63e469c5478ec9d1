"""The GSP as an RPC server over the resource manager's model.

Source: open-gpu-kernel-modules 570.144 rpc.c, g_rpc-structures.h, kernel_gsp.c; Linux 7.3.4 nouveau
nvkm/subdev/gsp/rm/{r535,r570}. A call that the model lacks is answered NOT_SUPPORTED; none is
answered with success that did not do its work.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ugpu.hcq.errors import NotSupported
from ugpu.hcq.state.instruction import Culprits
from ugpu.nv import abi
from ugpu.nv.abi.firmware import firmware
from ugpu.virtual.nvidia.chip import VirtualGpu
from ugpu.virtual.nvidia.files import OpenFile
from ugpu.virtual.nvidia.gsp.falcon.core import SWGEN0
from ugpu.virtual.nvidia.gsp.falcon.wpr import WprMeta
from ugpu.virtual.nvidia.gsp.faults import CardFault
from ugpu.virtual.nvidia.gsp.rpc import (
    calls,
    controls,
    module_controls,
    sequencer,
    spaces,
    static_info,
    suspend,
)
from ugpu.virtual.nvidia.gsp.rpc.arguments import Arguments
from ugpu.virtual.nvidia.gsp.rpc.channels import (
    GspChannel,
    UvmSoftware,
    cpu_memory,
    graphics_object,
)
from ugpu.virtual.nvidia.gsp.rpc.crash import LOAD_PAGE_FAULT, crash
from ugpu.virtual.nvidia.gsp.rpc.interface import Event, Function
from ugpu.virtual.nvidia.gsp.rpc.logs import Log
from ugpu.virtual.nvidia.gsp.rpc.queue import (
    DAMAGES,
    LARGEST,
    NONE,
    MessageQueues,
    QueueError,
    Record,
    usable,
)
from ugpu.virtual.nvidia.gsp.rpc.static_info import INTERNAL
from ugpu.virtual.nvidia.host.errors import ChannelError
from ugpu.virtual.nvidia.memory.shadow_buffer import ShadowBuffer
from ugpu.virtual.nvidia.rm.channels import ChannelObject
from ugpu.virtual.nvidia.rm.controls.text import set_text
from ugpu.virtual.nvidia.rm.objects import Allocation, Builder, Client
from ugpu.virtual.nvidia.rm.resources import Device, I2c, Subdevice
from ugpu.virtual.nvidia.status import RmError, Status, require

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.gsp.card import Card

_SILENT = (Function.GSP_SET_SYSTEM_INFO, Function.SET_REGISTRY)
_MOST_BYTES = 1 << 20  # of a message in several records
SUSPENDED = 0x8000_0000
_INIT_RESULTS = {
    CardFault.INIT_FAILS: Status.TIMEOUT, CardFault.INIT_REFUSED: Status.INVALID_ARGUMENT,
}  # fmt: skip
_RESULTS = {
    CardFault.RPC_TIMES_OUT: Status.TIMEOUT, CardFault.RPC_REFUSED: Status.NOT_SUPPORTED,
}  # fmt: skip


def _printed(line: str) -> bytes:
    text = f"{line}\n".encode()
    return struct.pack("<II", 0xF3D722 << 8, len(text)) + text


class GspServer:
    """One run of the GSP's firmware. The card's lock protects it, except `channel_failed`.

    dead: why the firmware has stopped; "" while it runs.
    """

    def __init__(self, board: Card, version: str, meta: WprMeta) -> None:
        self.board = board
        self.gpu = board.gpu
        self.meta = meta
        self.interface = firmware(version)
        self._lockdown = self.interface.constants.NV_VGPU_MSG_EVENT_GSP_LOCKDOWN_NOTICE
        self.machine = board.machine
        self.machine.abi = abi.select(version)
        self.gaps: list[NotSupported] = []
        self.culprits = Culprits()
        self.files: dict[int, OpenFile] = {}  # none: the CPU's programs are unknown here
        self.dead = ""
        self.done = False  # INIT_DONE was sent
        self.unloaded = False
        self.registry: dict[str, int] = {}
        self.asleep = False
        self.saved: tuple[int, ...] = ()
        self.sleep_at = 0
        self._seen: set[int] = set()
        self._sequenced = board.boot.way == "fsp"  # no sequencer on those chips
        self._started = False
        self._parts: list[bytes] = []  # of a message that continues
        self._head: Record | None = None
        self.shadow = ShadowBuffer(board, lambda: self.post(Event.MMU_FAULT_QUEUED, b""))
        self.own_controls = {
            **module_controls.HANDLERS, **controls.HANDLERS, **suspend.HANDLERS,
        }  # fmt: skip
        self.builders: dict[str, Builder] = {
            "KernelChannel": GspChannel,
            "KernelGraphicsObject": graphics_object,
            "VaSpaceApi": spaces.build,
            "I2cApi": I2c,
            "UvmSwObject": UvmSoftware,
            **dict.fromkeys(("OsDescMemory", "SystemMemory", "VideoMemory"), cpu_memory),
        }
        self._queues: MessageQueues | None = None
        self.directories = (0, 0)  # of the apertures, which the resource manager makes
        self.arguments: Arguments | None = None
        self.logs: dict[str, Log] = {}
        self._answers: dict[int, Callable[[GspServer, bytes], bytes]] = {
            Function.GET_GSP_STATIC_INFO: GspServer._static_info,
            Function.UPDATE_BAR_PDE: GspServer._update_bar,
            Function.UNLOADING_GUEST_DRIVER: GspServer._unloading,
            Function.GSP_RM_ALLOC: calls.allocate,
            Function.GSP_RM_CONTROL: calls.control,
            Function.FREE: calls.free,
            Function.DUP_OBJECT: calls.duplicate,
            Function.ALLOC_MEMORY: suspend.allocate_memory,
            Function.SET_PAGE_DIRECTORY: calls.set_page_directory,
            Function.UNSET_PAGE_DIRECTORY: calls.unset_page_directory,
        }

    # Boot

    def start(self, address: int) -> None:
        """Begin with the libos arguments at a bus address; continue with `doorbell`."""
        with self._dying():
            self.arguments = Arguments.read(self.board, address, self.interface)
            queues = self.arguments.queues
            self._queues = MessageQueues(self.board, *queues)
            if self.board.faults.take(CardFault.QUEUE_SHAPE):
                self._queues.spoil_shape()
        if self.dead or self.arguments is None:
            return
        for name, address in self.arguments.logs.items():
            self.logs[name] = Log(self.board, address)
        self.logs["LOGINIT"].record(1, self.meta.gspFwHeapOffset, self.meta.gspFwHeapSize)
        self.doorbell()

    def resume(self) -> None:
        """Go on after a suspend: as at a start, but with the queues and objects that there were."""
        assert self.arguments is not None
        with self._dying():
            self.arguments.read_again(self.board, self.interface)
            suspend.wake(self)
            self.unloaded = self.done = self._started = False
            self._sequenced = self.board.boot.way == "fsp"
            self.doorbell()

    @contextmanager
    def _dying(self) -> Iterator[None]:
        """Stop the firmware where the block finds that the host's messages cannot be used."""
        try:
            yield
        except QueueError as error:
            self.dead = str(error)
            self.board.violation(f"GSP: {error}")

    def doorbell(self) -> None:
        """Handle all messages of the host, and go on with the boot if it can."""
        if self.dead or self._queues is None:
            return
        with self._dying():
            while (
                not self.unloaded
                and not self.dead
                and (record := self._queues.receive()) is not None
            ):
                self._take(record)
            self._go_on()

    def _go_on(self) -> None:
        """Send what follows SET_SYSTEM_INFO and SET_REGISTRY; then INIT_DONE."""
        if self.done or self.dead or not self._seen >= set(_SILENT):
            return
        if not self._started:
            self._started = True
            self._chatter()
            if self._struck_early():
                return
            if not self._sequenced:
                fault = self.board.faults.take_any(tuple(sequencer.FAULTS))
                self.post(Event.RUN_CPU_SEQUENCER, sequencer.program(fault))
        if self._sequenced:
            if self.board.faults.take(CardFault.INIT_CRASHES):
                self._crash()
                return
            self.done = True
            fails = self.board.faults.take_any(tuple(_INIT_RESULTS))
            if fails is not None:
                self._fail_init(_INIT_RESULTS[fails])
                return
            if not any(self.directories):
                self._begin_rm()
            self.logs["LOGRM"].record(2, len(self.registry))
            self.post(Event.INIT_DONE, b"")

    def _struck_early(self) -> bool:
        """Return whether a planted fault keeps the firmware from coming up."""
        faults, queues = self.board.faults, self._queues
        assert queues is not None
        if faults.take(CardFault.WRITE_INDEX):
            queues.spoil_index(read=False)
        elif faults.take(CardFault.INIT_LOCKDOWN):
            self.post(self._lockdown, bytes((1, 0, 0, 0)))
        elif not faults.take(CardFault.INIT_NEVER):
            return False
        self.dead = "planted"
        return True

    def _crash(self, *, readable: bool = True) -> None:
        self.dead = "planted"
        self.logs["LOGINIT"].record(4, LOAD_PAGE_FAULT)
        crash(self.board.gsp, self.gpu.time_ns(), readable=readable)
        self.board.gsp.interrupt(SWGEN0)

    def _chatter(self) -> None:
        """Send what real firmware sends before it is ready."""
        for index in range(self.board.options.notices):
            self.post(Event.UCODE_LIBOS_PRINT, _printed(f"boot stage {index}"))
            for engaging in (1, 0):
                self.post(self._lockdown, bytes((engaging, 0, 0, 0)))

    def sequenced(self, scratch: int, done: int) -> None:
        """Handle the sequencer's last write. Wrong values keep the GSP waiting."""
        if self._sequenced or not self._started or self.dead:
            return
        why = sequencer.problem(scratch, done)
        if why:
            self.board.violation(f"the CPU sequencer was executed wrongly: {why}")
            return
        self._sequenced = True
        self.doorbell()

    def _begin_rm(self) -> None:
        """Create the GSP's own objects and the apertures' directories."""
        self.gpu.memory.place_tables(self.meta.gspFwHeapOffset, self.meta.gspFwHeapSize)
        # The CPU writes entries of BAR1's directory: it is outside of the write-protected region.
        self.directories = self.board.make_apertures(self.meta.nonWprHeapOffset)
        machine = self.machine
        client = Client(machine, INTERNAL[0], self, 0)
        machine.clients[client.handle] = client
        device = Device(Allocation(machine, client, client, INTERNAL[1], 0x80, None))
        client.add(device)
        client.add(Subdevice(Allocation(machine, client, device, INTERNAL[2], 0x2080, None)))

    # Messages

    def post(self, event: int, payload: bytes) -> None:
        """Send an event. Any thread may call; a full queue stops the firmware."""
        if self._queues is None or self.dead:
            return
        with self._dying():
            self._queues.send(event, payload)
            self.board.gsp.interrupt(SWGEN0)

    def _take(self, record: Record) -> None:
        """Collect a message's records; answer it once it is whole."""
        if record.function == Function.CONTINUATION_RECORD:
            usable(self._head, "a continuation record without a message before it")
            self._parts.append(record.body)
        else:
            usable(not self._head, "a message in several records was not continued")
            self._head, self._parts = record, [record.body]
        head = self._head
        assert head is not None
        body = b"".join(self._parts)
        wanted = calls.expected_size(head.function, body)
        usable(wanted <= _MOST_BYTES, f"function {head.function} with {wanted} bytes")
        if len(body) < wanted:
            if head.length == LARGEST:
                return  # more follows
            # NVIDIA's module does not count an object's parameters in the record's length.
            body = (body + head.tail)[:wanted]
        self._head, self._parts = None, []
        self._answer(head, body)

    def _answer(self, record: Record, body: bytes) -> None:
        number = record.function
        self.board.calls.append(calls.describe(number, body))
        if number in _SILENT:
            self._silent(number, body)
            return
        assert self._queues is not None
        if self._struck():
            return
        if number == Function.SET_GUEST_SYSTEM_INFO:
            self._queues.send(number, body, sequence=record.sequence)
            return
        handler = self._answers.get(number)
        result, reply = int(Status.NOT_SUPPORTED), body
        if not self.done:
            result = int(Status.INVALID_STATE)
            self.board.violation(f"RPC {number} before INIT_DONE")
        elif (fault := self.board.faults.take_any(tuple(_RESULTS))) is not None:
            result = int(_RESULTS[fault])
        elif handler is None:
            self.machine.asked[f"RPC {number}"] += 1
        else:
            result, reply = self._call(number, handler, body)
        for index in range(self.board.options.flood if self.done else 0):
            self._queues.send(Event.UCODE_LIBOS_PRINT, _printed(f"message {index}"))
        self._queues.send(number, reply, result=result, sequence=record.sequence)
        if self.board.faults.take(CardFault.REPLY_TWICE):
            self._queues.repeat_number()
            self._queues.send(number, reply, result=result, sequence=record.sequence)
        if self.board.faults.take(CardFault.READ_INDEX):
            self._queues.spoil_index(read=True)
            self.dead = "planted"
        self.board.gsp.interrupt(SWGEN0)
        if self.unloaded:
            self.board.gsp_suspended()

    def _struck(self) -> bool:
        """Return whether a planted fault keeps a call from being answered."""
        faults, queues = self.board.faults, self._queues
        assert queues is not None
        damage = faults.take_any(tuple(DAMAGES))
        queues.damage = DAMAGES[damage] if damage is not None else NONE
        if faults.take(CardFault.GSP_CRASHES):
            self._crash()
        elif faults.take(CardFault.CRASH_UNREADABLE):
            self._crash(readable=False)
        elif faults.take(CardFault.GSP_DIES):
            self.dead = "planted"
            self.board.gsp.active, self.board.gsp.riscv_halted = False, True
        elif faults.take(CardFault.FALLS_OFF_AT_CALL):
            self.dead = "planted"
            self.board.unplug()
        return bool(self.dead) or faults.take(CardFault.RPC_LOST)

    def _fail_init(self, status: Status) -> None:
        """Report that the resource manager did not come up, as a planted fault."""
        assert self._queues is not None
        text = "NVRM: RmInitNvDevice: display engine timeout"
        self.logs["LOGRM"].record(3, int(status))
        self._log_error(119, 0, 0, text)
        self._queues.send(Event.INIT_DONE, b"", result=int(status))

    def _call(
        self, number: int, handler: Callable[[GspServer, bytes], bytes], body: bytes
    ) -> tuple[int, bytes]:
        try:
            with self.machine.lock:
                return 0, handler(self, body)
        except RmError as error:
            self.machine.refused.append(f"{calls.describe(number, body)}: {error}")
            return int(error.status), body

    def _silent(self, number: int, body: bytes) -> None:
        if number == Function.GSP_SET_SYSTEM_INFO:
            expected = self.interface.structs.GspSystemInfo.size
            text = f"GspSystemInfo must have {expected:#x} bytes, got {len(body):#x}"
            usable(len(body) == expected, text)
        else:
            self.registry = calls.registry(body)
        self._seen.add(number)

    # Calls that are not the resource manager's objects

    def _static_info(self, body: bytes) -> bytes:
        size = self.interface.structs.GspStaticConfigInfo.size
        text = f"GspStaticConfigInfo must have {size:#x} bytes, got {len(body):#x}"
        require(len(body) == size, Status.INVALID_ARGUMENT, text)
        fault = self.board.faults.take_any(static_info.FAULTS)
        return static_info.fill(self, fault)

    def _update_bar(self, body: bytes) -> bytes:
        kind, value, shift = calls.unpack("<IxxxxQQ", body)
        known = kind in (0, 1) and shift == self.gpu.form.levels[0].shift
        require(known, Status.INVALID_ARGUMENT, f"BAR type {kind}, level shift {shift}")
        self.gpu.memory.words[self.directories[kind] // 8] = value
        return body

    def _unloading(self, body: bytes) -> bytes:
        moving, gc6, _, level = calls.unpack("<BBHI", body)
        require(not gc6, Status.NOT_SUPPORTED, "GC6 is not modelled")
        if moving:
            suspend.begin(self, level)
        else:
            require(level in (0, 0x40), Status.INVALID_ARGUMENT, f"newLevel {level:#x}")
            self.close()
        self.unloaded = True
        return body

    def close(self) -> None:
        """Free all objects: the firmware ends, or was reset."""
        machine = self.machine
        for client in [client for client in machine.clients.values() if client.owner is self]:
            client.free(client)
            del machine.clients[client.handle]

    # For the resource manager's objects

    def has_open(self, gpu: VirtualGpu) -> bool:
        """Return whether the GPU is attached: it is the firmware's own."""
        return gpu is self.gpu

    def channel_failed(self, channel: ChannelObject, error: ChannelError) -> None:
        """Tell the CPU: the error's text, then RC_TRIGGERED."""
        number, xid = channel.channel.number, int(error.xid)
        text = f"Xid {xid}: Ch {number:08x}, {error.text}"
        self._log_error(xid, channel.runlist.number, number, text)
        layout = self.interface.structs.rpc_rc_triggered_v17_02
        event = layout.new(chid=number, exceptType=xid)
        event.nv2080EngineType = channel.channel.runlist_engine
        if error.fault is not None and "mmuFaultType" in layout.fields:
            page, event.mmuFaultType = error.fault.page, int(error.fault.kind)
            event.mmuFaultAddrLo, event.mmuFaultAddrHi = page & 0xFFFF_FFFF, page >> 32
        self.post(Event.RC_TRIGGERED, bytes(event.raw))

    def _log_error(self, xid: int, runlist: int, channel: int, text: str) -> None:
        layout = self.interface.structs.rpc_os_error_log_v17_00
        log = layout.new(exceptType=xid, runlistId=runlist, chid=channel)
        set_text(log.errString, text)
        self.post(Event.OS_ERROR_LOG, bytes(log.raw))
