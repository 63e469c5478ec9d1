"""The way back: let the firmware leave, and hand the chip back as it was after power-on.

Its parts are prepared before the first step that cannot be undone. Sources: Linux 7.3 nouveau
rm/r535/gsp.c (r535_gsp_fini), nova-core gsp/boot.rs; open-gpu-kernel-modules 570.144
kernel_gsp_tu102.c (kgspTeardown_TU102), kernel_gsp_gh100.c (kgspTeardown_GH100).
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass

from ugpu.hcq.bare.stages import or_silent
from ugpu.hcq.errors import FirmwareRejected, UgpuError
from ugpu.nv.chips.boot import BootWay
from ugpu.nv.gsp.boot.booter import place_booter, run_booter
from ugpu.nv.gsp.boot.fwsec import place_fwsec, program, protected_region
from ugpu.nv.gsp.boot.start import Start
from ugpu.nv.gsp.images.fwsec import READ_VBIOS, RETURN
from ugpu.nv.gsp.layout.arguments import SUSPEND_LEVEL
from ugpu.nv.gsp.layout.memory import Pages
from ugpu.nv.gsp.rpc.calls import REPLY_LIMIT_S, Calls

log = logging.getLogger(__name__)

_SUSPENDED = 0x8000_0000
_SUSPEND_LIMIT_S = 5.0  # TIMEOUT: nova-core; nouveau 2 s
_HALT_LIMIT_S = 5.0
_PLAIN = 0xFF_0000_00FF  # in booter's mailboxes: unload, not suspend


@dataclass
class WayBack:
    """Programs in memory that undo a start: FWSEC's RETURN and booter's unload."""

    fwsec: Pages | None = None
    booter: Pages | None = None


def prepare(start: Start) -> WayBack:
    """Copy what `hand_back` needs into memory."""
    way = WayBack()
    if start.boot.way is BootWay.FSP:
        return way
    if start.fwsec is not None:
        way.fwsec = place_fwsec(start, RETURN, READ_VBIOS)
    assert start.files.unload is not None
    way.booter = place_booter(start, start.files.unload)
    return way


def leave(
    start: Start, calls: Calls, limit_s: float = REPLY_LIMIT_S, *, suspending: bool = False
) -> None:
    """Tell the firmware that its driver unloads, and wait until it has stopped. limit_s: for its
    answer. suspending: it is to save itself, and to go on later."""
    abi = calls.abi
    block = abi.structs.rpc_unloading_guest_driver_v1F_07.new()
    if suspending:
        block.bInPMTransition, block.newLevel = 1, SUSPEND_LEVEL
    function = abi.constants.NV_VGPU_MSG_FUNCTION_UNLOADING_GUEST_DRIVER
    calls.call(function, bytes(block.raw), limit_s=limit_s)
    with or_silent("the GSP's firmware has not stopped", start.state):
        start.chip.wait_bits(
            start.gsp.regs.MAILBOX0,
            0xFFFF_FFFF,
            _SUSPENDED,
            unit="GSP",
            waiting_for="its firmware's end",
            limit_s=_SUSPEND_LIMIT_S,
        )


def hand_back(start: Start, way: WayBack, saved: int | None = None) -> None:
    """Undo a start whose firmware has stopped or never ran: the protected region is given up.
    saved: address of GspFwSRMeta; booter saves the region first.

    FirmwareRejected if a program of the way back fails; the chip then needs a reset.
    """
    chip = start.chip
    if start.boot.way is BootWay.FSP:
        control, what = start.gsp.regs.RISCV_CPUCTL, "halt of its core"
        with or_silent("the GSP has not halted", start.state):
            if start.running:
                chip.await_fields("GSP", control, what, _HALT_LIMIT_S, HALTED=1)
        start.running = False
        return
    if way.fwsec is not None and start.fwsec is not None:
        start.gsp.run(program(start, way.fwsec, "FWSEC-SB"))
        error = chip.nv.NV_PBUS_SW_SCRATCH_15.read().SB_ERROR
        if error:
            raise FirmwareRejected(
                f"FWSEC-SB reports error {error:#x}", image="FWSEC", stage="SB", status=error
            )
    if protected_region(chip)[1] and way.booter is not None:
        assert start.files.unload is not None
        run_booter(start, start.files.unload, way.booter, _PLAIN if saved is None else saved)
        low, high = protected_region(chip)
        if high:
            raise FirmwareRejected(
                "booter has left the protected region (WPR2) set",
                image="booter_unload", stage="unload", found=f"{low:#x}-{high:#x}",
            )  # fmt: skip
    start.running = False


def undo(start: Start, way: WayBack, calls: Calls | None) -> None:
    """Undo a start that failed, as far as that works; never raises errors of the chip. Firmware
    that has come up is asked to leave first; any other would not answer."""
    try:
        if start.chip.lost():
            return
        if calls is not None and start.up and start.gsp.riscv_active:
            with contextlib.suppress(UgpuError):
                leave(start, calls, _SUSPEND_LIMIT_S)
        hand_back(start, way)
    except UgpuError as error:
        log.warning("after a failed start, the GPU could not be handed back: %s", error)
