"""NvDevice: the user's interface to an NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Callable

from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, NotSupported
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.transport.node import NodeAttachment
from ugpu.hcq.work.buffer import Buffer
from ugpu.nv.device.driver import NvDriver, OpenGpu, StageHook
from ugpu.nv.rm.node_gpu import NodeGpu
from ugpu.nv.rm.session import NodeSession, Session


def open_device(
    name: str,
    attachment: NodeAttachment,
    *,
    on_stage: StageHook | None = None,
    mig: str | None = None,
    commands: str = Placement.DEVICE.value,
    isolated: bool = False,
) -> NvDevice:
    """Open the GPU behind `attachment`. The device owns the attachment's node from now on.

    on_stage(name, seconds) is called after each stage. mig: the instance of a divided GPU, as in
    "3/0" (GPU instance, compute instance). commands: "device" or "host", the placement of command
    images (pushbuffers, launch descriptors, constant bank 0); images for which the GPU has no
    window are in host memory. BadArgument for another word. isolated: kernels cannot reach memory
    of this process that was not mapped for them, even if the system has HMM or ATS (see Uvm).
    """
    try:
        placement = _placement_of(commands)
        session = NodeSession(attachment.node, isolated=isolated)
    except BaseException:
        attachment.node.close()
        raise
    opens = opener(attachment.index, mig)
    driver = NvDriver(name, session, opens, on_stage=on_stage, commands=placement)
    return NvDevice(driver)


def opener(index: int, mig: str | None = None) -> OpenGpu:
    """Return what opens a GPU by its minor number in a session with the stock driver."""

    def open_gpu(session: Session) -> NodeGpu:
        assert isinstance(session, NodeSession)
        return NodeGpu(session, index, mig)

    return open_gpu


def _placement_of(commands: object) -> Placement:
    for placement in Placement:
        if commands == placement.value:
            return placement
    known = ", ".join(repr(placement.value) for placement in Placement)
    raise BadArgument(f"commands must be one of {known}, got {commands!r}")


class NvDevice(Device):
    """One NVIDIA GPU. See hcq.Device."""

    def __init__(self, driver: NvDriver) -> None:
        super().__init__(driver)
        self._driver = driver

    @property
    def driver(self) -> NvDriver:
        """See Device."""
        return self._driver

    @property
    def boot_stages(self) -> list[tuple[str, float]]:
        """Durations of the start: (name, seconds) of each stage."""
        return self._driver.boot_stages

    @property
    def on_print(self) -> Callable[[str], None]:
        """Function that receives what kernels print; the default writes to standard output.

        It is called at `synchronize`, once for each call of printf. Assign another function to
        redirect the text.
        """
        return self._driver.on_print

    @on_print.setter
    def on_print(self, take: Callable[[str], None]) -> None:
        self._driver.on_print = take

    @property
    def dynamic_stack(self) -> int:
        """Bytes of stack per thread for recursion and alloca, in programs loaded from now on.

        Can be set.
        """
        return self._driver.dynamic_stack

    @dynamic_stack.setter
    def dynamic_stack(self, size: int) -> None:
        self._driver.dynamic_stack = size

    # ---- several GPUs ------------------------------------------------------------------------

    def open_peer(self, index: int, name: str | None = None) -> NvDevice:
        """Open another GPU of the same driver so that memory can be shared; the caller closes it.

        DriverRefused if the two cannot reach each other (no NVLink, no PCIe peer access).
        """
        own = self._driver
        gpu = own.gpu
        if not isinstance(gpu, NodeGpu):
            raise NotSupported("peers are opened through the stock driver only")
        driver = NvDriver(
            name or f"nvrm:{index}", own.session, opener(index), commands=own.command_placement
        )
        peer = NvDevice(driver)
        try:
            assert isinstance(driver.gpu, NodeGpu)
            gpu.enable_peer(driver.gpu)
        except BaseException:
            peer.close()
            raise
        return peer

    def reach(self, buffer: Buffer) -> Buffer:
        """Return a buffer of a peer (`open_peer`) as one of this device: the same memory and
        address.

        It does not own the memory: the peer's buffer must stay open as long as this one is used.
        """
        near = self._driver.reach_memory(buffer)
        if near is None:
            raise BadArgument("expected a buffer of a GPU opened with open_peer")
        return near
