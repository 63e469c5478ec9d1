"""The tree of all errors this project raises; a class names the party at fault.

    UgpuError
    ├── UsageError            the caller: wrong argument, shape, name or file format
    │   ├── DeviceNotFound        no device of that name
    │   ├── BadArgument           a value or type that is not allowed (also a ValueError)
    │   │   ├── BadIndex              an index or axis outside of a tensor (also an IndexError)
    │   │   └── NoKernel              the program has no kernel of that name (also a KeyError)
    │   ├── BadCodeObject         a code object that is truncated, foreign or inconsistent
    │   ├── BadFile               a file of tensors or a model, likewise; carries file
    │   ├── Closed                used after close()
    │   ├── NotShared             memory cannot be shared as requested (also a BufferError)
    │   └── MissingDependency     an optional package is needed; carries the install command
    ├── HostError             this machine: something outside our process must change
    │   ├── AccessDenied          carries the command that grants access
    │   ├── DeviceBusy            carries holder, which names who holds the device
    │   │   └── GroupNotViable        a kernel driver holds another function of the IOMMU group
    │   ├── OutOfMemory           host memory, device memory or address space is exhausted
    │   ├── IommuOff              the device's DMA can reach all of memory
    │   ├── ModuleMissing         a kernel module is not loaded
    │   ├── BarUnassigned         a BAR has no address on the bus
    │   ├── BarTooSmall           a BAR is smaller than the driver needs
    │   ├── DriverRefused         the system's driver refused a request; carries request and status
    │   ├── DecodingOff           a function or a port above it does not pass memory accesses on
    │   └── DeviceAsleep          the function is in a power state in which it does not answer
    ├── LinkError             the connection to the chip
    │   ├── DeviceLost            all-ones: unplugged, or fallen off the bus
    │   ├── LinkDown              the PCIe link is not up
    │   ├── LinkDegraded          the PCIe link has too few lanes; carries remedy
    │   └── TransportError        a transfer was refused or cut short
    │       ├── EndpointStalled       a USB device refused a request or halted an endpoint
    │       ├── TransferTimeout       a USB transfer did not end within its limit
    │       ├── TransferOverrun       a USB device sent more than was requested (babble)
    │       ├── CommandFailed         a SCSI command over USB ended with an error
    │       └── WrongAnswer           a USB device's answer violates its protocol
    ├── ChipError             the chip: its hardware reports a failure
    │   ├── DiscoveryError        the chip's discovery table is invalid
    │   ├── UnitTimeout           a block did not reach the awaited state within its limit
    │   ├── PageFault             an access that the page tables do not permit
    │   ├── IllegalInstruction    a wave reached an instruction it cannot execute
    │   ├── AssertionFailed       an assert of a kernel; carries file, line, block and thread
    │   ├── BadPacket             a queue contains a packet that its command processor refuses
    │   ├── OverTemperature       the chip is hotter than its board allows; carries the limit
    │   └── DeviceHang            work did not end within its limit
    └── FirmwareError         the chip's firmware, or its images
        ├── FirmwareNotFound      carries the paths that were searched
        ├── FirmwareInvalid       an image is truncated or malformed; found before it is sent
        ├── FirmwareRejected      the chip refused an image; carries image, stage and status
        └── FirmwareSilent        a firmware mailbox does not answer
    NotSupported              us: not implemented (also a NotImplementedError)
    CompileError              us: the code generator failed on a kernel; carries its IR

Every error carries its facts as attributes (given as keywords) and shows them in its text.
"""

from __future__ import annotations

# Facts that are counts: bytes, elements, places in a file. All other large integers are shown in
# hexadecimal, as is usual for addresses, registers and status words.
_COUNTED = frozenset(
    (
        "size", "length", "count", "width", "align", "granule", "limit", "need", "needs", "needed",
        "have", "has", "most", "at_most", "largest", "free", "available", "missing", "stack",
        "static", "dynamic", "source", "destination", "window", "vectors", "enabled", "entries",
        "number", "threads", "index", "position", "line", "column", "ordinal", "files", "areas",
        "regions", "slot", "grid", "block", "stated", "memory", "vram", "registers", "reach_bits",
        "pid",
    )
)  # fmt: skip


def _show(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value)
    return str(value) if -1000 < value < 1000 or name in _COUNTED else f"{value:#x}"


_BYTES = frozenset(
    ("size", "free", "used", "missing", "largest", "machine", "vram", "need", "total")
)


def bytes_text(size: int) -> str:
    """Return a number of bytes in decimal, from 1 KiB on also in the largest unit that fits."""
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if abs(size) >= 1 << shift:
            return f"{size} bytes ({size / (1 << shift):.4g} {unit})"
    return f"{size} bytes"


class UgpuError(Exception):
    """Base of the tree. `facts` holds the keywords; each is an attribute too."""

    @staticmethod
    def show(name: str, value: object) -> str:
        """Return a fact as text."""
        return _show(name, value)

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts: dict[str, object] = {}
        self.add_facts(**facts)

    def add_facts(self, **facts: object) -> None:
        """Add or replace facts that only a caller has, such as the stage of a boot."""
        self.facts |= facts
        for name, value in facts.items():
            setattr(self, name, value)
        shown = ", ".join(f"{name}={self.show(name, value)}" for name, value in self.facts.items())
        # Not `args` alone: ImportError stores its text separately.
        super().__init__(f"{self.message} ({shown})" if shown else self.message)


class UsageError(UgpuError):
    """The caller made an invalid request."""


class DeviceNotFound(UsageError, LookupError):
    """No device has this name."""


class BadArgument(UsageError, ValueError):
    """An argument has an invalid value or type."""


class BadIndex(BadArgument, IndexError):
    """An index or an axis lies outside of a tensor."""


class NotRecorded(UsageError, LookupError):
    """A recording has no value for this place at this moment; carries source."""


class NoKernel(BadArgument, KeyError):
    """A program has no kernel of that name. `in` and `get` of a Mapping expect a KeyError."""

    __str__ = BadArgument.__str__


class BadCodeObject(UsageError, ValueError):
    """A code object is truncated, foreign or inconsistent."""


class BadFile(UsageError, ValueError):
    """A file of tensors or a model is truncated, foreign or inconsistent; carries file."""


class Closed(UsageError):
    """The object is already closed."""


class NotShared(UsageError, BufferError):
    """Memory cannot be shared with another library as requested."""


class MissingDependency(UsageError, ImportError):
    """An optional package is not installed; `install` is the command that installs it."""


class HostError(UgpuError):
    """Something on this machine, outside this process, must change."""


class AccessDenied(HostError, PermissionError):
    """The system denies access; `remedy` is the command that grants access."""


class DeviceBusy(HostError):
    """Another process or driver holds the device; `holder` names it."""


class GroupNotViable(DeviceBusy):
    """Functions that share the IOMMU group are held by kernel drivers; carries holder and
    remedy."""


class OutOfMemory(HostError, MemoryError):
    """No memory or address space is left. Facts that are sizes are shown in decimal, with units."""

    @staticmethod
    def show(name: str, value: object) -> str:
        """Return a fact as text."""
        return bytes_text(value) if name in _BYTES and type(value) is int else _show(name, value)


class IommuOff(HostError):
    """No IOMMU confines the device's DMA; `remedy` is how to enable it."""


class ModuleMissing(HostError):
    """A kernel module is not loaded; `remedy` is the command that loads it."""


class BarUnassigned(HostError):
    """A BAR has no address; carries bar and remedy."""


class BarTooSmall(HostError):
    """A BAR is smaller than needed; carries bar, size, needed and remedy."""


class DriverRefused(HostError):
    """The system's driver for the device refused a request; carries request and status."""


class DecodingOff(HostError):
    """A function, or a port above it, does not pass memory accesses on; carries command, needed and
    remedy."""


class DeviceAsleep(HostError):
    """The function is powered down (D3); carries state and remedy."""


class LinkError(UgpuError):
    """The connection to the chip failed."""


class DeviceLost(LinkError):
    """The chip no longer responds: its registers read as all ones."""


class LinkDown(LinkError):
    """The PCIe link of the function is not up; carries remedy."""


class LinkDegraded(LinkError):
    """A PCIe link is too narrow or too slow to be used; carries what was found (width and speed of
    the function's link, or expected and found of one above it) and remedy."""


class TransportError(LinkError):
    """A transfer was refused or cut short."""


class EndpointStalled(TransportError):
    """A USB device answered with STALL; carries endpoint, or request, value and index."""


class TransferTimeout(TransportError, TimeoutError):
    """A USB transfer did not end within its limit and was cancelled; carries endpoint or request,
    length and limit_s."""


class TransferOverrun(TransportError):
    """A USB device sent more than was requested (babble); carries endpoint and length."""


class CommandFailed(TransportError):
    """A SCSI command over USB ended with an error; carries opcode, and either status with the key,
    code and qualifier of its sense data, or response, a code of USB Attached SCSI."""


class WrongAnswer(TransportError):
    """A USB device's answer violates its protocol: another command's tag, another unit, too few
    bytes; carries expected and found."""


class ChipError(UgpuError):
    """The chip's hardware reports a failure."""


class DiscoveryError(ChipError):
    """The chip's discovery table is invalid."""


class UnitTimeout(ChipError, TimeoutError):
    """A block did not reach the awaited state; carries unit, waiting_for, limit_s, state."""


class PageFault(ChipError):
    """An access that the page tables do not permit; carries address, access, client, vmid."""


class IllegalInstruction(ChipError):
    """A wave reached an instruction that it cannot execute."""


class AssertionFailed(ChipError):
    """An assert of a kernel failed; carries condition, file, line, function, block, thread."""


class BadPacket(ChipError):
    """A command processor refused a packet."""


class OverTemperature(ChipError):
    """The chip is hotter than its board allows; carries limit_celsius and usually celsius."""


class DeviceHang(ChipError, TimeoutError):
    """Submitted work did not end within its limit; carries the device's state."""


class FirmwareError(UgpuError):
    """The chip's firmware or a firmware image failed."""


class FirmwareNotFound(FirmwareError, FileNotFoundError):
    """An image is not installed; carries name and the folders searched."""


class FirmwareInvalid(FirmwareError, ValueError):
    """An image is truncated or malformed."""


class FirmwareRejected(FirmwareError):
    """The chip refused an image; carries image, stage and status."""


class FirmwareSilent(FirmwareError, TimeoutError):
    """A firmware mailbox did not respond within its limit."""


class NotSupported(UgpuError, NotImplementedError):
    """The feature is not implemented; there is never a silent fallback."""


class CompileError(UgpuError):
    """LLVM could not compile the code, or LLVM failed. ir: the LLVM IR."""

    ir: str = ""
