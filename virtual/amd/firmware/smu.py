"""The system management unit (MP1): its mailboxes and messages.

Facts: Linux 6.12 smu_cmn.c (protocol), smu_v13_0_0_ppsmc.h (messages, responses),
smu_v13_0.c and smu_v13_0_0_ppt.c (arguments, mode1), smu13_driver_if_v13_0_0.h (tables).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ugpu.am.regs import constants
from ugpu.virtual.amd.block import Block, Reset
from ugpu.virtual.amd.firmware.announcements import Announcements
from ugpu.virtual.amd.firmware.clocks import Clocks
from ugpu.virtual.amd.firmware.gfxoff import GraphicsPower
from ugpu.virtual.amd.firmware.powerplay import combo_table, overdrive_table
from ugpu.virtual.amd.firmware.smumetrics import Metrics

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board

_CLIENT = 7  # MP1 in MMHUB
_OK, _FAILED, _UNKNOWN, _PREREQUISITE, _BUSY = 1, 0xFF, 0xFE, 0xFD, 0xFC
# Mode1Reset: delay of the reset after the answer was read, and after the answer itself if it is not
# read. UNSURE: how long a board's answer can be read; tinygrad polls for it on boards.
_MODE1_GRACE, _MODE1_UNREAD = 0.0005, 0.25
_TABLE_ALIGNMENT = 256
# MP1_FIRMWARE_FLAGS by its SMN address (smu_v13_0_check_fw_status); bit 0: firmware accepts
# messages.
_FIRMWARE_FLAGS, _INTERRUPTS = (0x03B0_0000 | 0x0301_0024) >> 2, 1
_LEAST_POWER = 100  # watts

# The debug mailbox: smu_v13_0_0_ppsmc.h. Its message 2 is DEBUGSMC_MSG_Mode1Reset (Linux commit
# 29b1b0b06def, tinygrad 0.14) in current firmware, but GetDebugData in the header of Linux 6.12.
_DEBUG_TEST, _DEBUG_MODE1, _DEBUG_EXIT = 1, 2, 3

# Messages that are accepted without an effect in this model.
_ACCEPTED = """
    UseDefaultPPTable SetWorkloadMask NotifyPowerSource
    SetToolsDramAddrHigh SetToolsDramAddrLow SetSystemVirtualDramAddrHigh
    SetSystemVirtualDramAddrLow SetThrottlerMask SetFwDstatesMask RunDcBtc AllowGfxDcs
    DisallowGfxDcs OverridePcieParameters DALNotPresent EnableAudioStutterWA
    SetExternalClientDfCstateAllow AllowIHHostInterrupt SetTemperatureInputSelect PowerUpVcn
    PowerDownVcn PowerUpJpeg PowerDownJpeg SetDcsArch
"""

# Features in the graphics core's power domain (FEATURE_PWR_GFX). UNSURE: AMD's list is not public;
# these are the features that can be identified by name.
_GRAPHICS = ("DPM_GFXCLK", "DPM_GFX_POWER_OPTIMIZER", "GFX_ULV", "GFXOFF", "DS_GFXCLK", "GFX_IMU")

Answer = tuple[int, int | None]  # response, value for the argument register (None leaves it)


class _Mailbox(NamedTuple):
    message: str
    argument: str
    response: str


_MAIN = _Mailbox("MP1_SMN_C2PMSG_66", "MP1_SMN_C2PMSG_82", "MP1_SMN_C2PMSG_90")
_DEBUG = _Mailbox("MP1_SMN_C2PMSG_75", "MP1_SMN_C2PMSG_53", "MP1_SMN_C2PMSG_54")


class Smu(Block):
    """MP1. Does not answer until its firmware has been loaded through the PSP.

    features: the enabled features, one bit each. metrics.load: the engines report their work to it.
    messages: the latest 1000 received messages, as (id, argument), for tests. graphics: power of
    the graphics core.
    """

    def __init__(self, chip: Board) -> None:
        super().__init__(chip, "mp1")
        self.running = False
        self.features = 0
        self.messages: list[tuple[int, int]] = []
        self.clocks = Clocks(chip.facts.board)
        self.graphics = GraphicsPower(chip)
        self.metrics = Metrics(chip, self.clocks, lambda: self.graphics.off)
        self.announcements = Announcements(chip, self.metrics)
        self._allowed = 0
        self._dram = 0
        self._pending: set[_Mailbox] = set()
        self._resetting: _Mailbox | None = None  # whose reply to Mode1Reset has not been read yet
        names = constants(chip.facts.smu.messages)
        tables = constants(chip.facts.smu.tables)
        self._graphics_features = sum(
            1 << tables[bit] for name in _GRAPHICS if (bit := f"FEATURE_{name}_BIT") in tables
        )
        handlers: dict[str, Callable[[int], Answer]] = {
            "TestMessage": lambda argument: (_OK, argument + 1 & 0xFFFF_FFFF),
            "GetSmuVersion": lambda _: (_OK, chip.options.smu_version),
            "GetDriverIfVersion": lambda _: (_OK, chip.options.smu_driver_if),
            "SetAllowedFeaturesMaskLow": lambda mask: self._allow(mask, 0),
            "SetAllowedFeaturesMaskHigh": lambda mask: self._allow(mask, 32),
            "EnableAllSmuFeatures": self._enable_domain,
            "DisableAllSmuFeatures": lambda _: self._enable(0),
            "EnableSmuFeaturesLow": lambda mask: self._enable(self.features | mask),
            "EnableSmuFeaturesHigh": lambda mask: self._enable(self.features | mask << 32),
            "DisableSmuFeaturesLow": lambda mask: self._enable(self.features & ~mask),
            "DisableSmuFeaturesHigh": lambda mask: self._enable(self.features & ~(mask << 32)),
            "GetRunningSmuFeaturesLow": lambda _: (_OK, self.features & 0xFFFF_FFFF),
            "GetRunningSmuFeaturesHigh": lambda _: (_OK, self.features >> 32),
            "SetDriverDramAddrHigh": lambda high: self._set_dram(high << 32, 0xFFFF_FFFF),
            "SetDriverDramAddrLow": lambda low: self._set_dram(low, 0xFFFF_FFFF << 32),
            "TransferTableSmu2Dram": self._to_dram,
            "TransferTableDram2Smu": self._from_dram,
            "SetSoftMinByFreq": lambda argument: self._limit(argument, lowest=True),
            "SetSoftMaxByFreq": lambda argument: self._limit(argument, lowest=False),
            "SetHardMinByFreq": lambda argument: self._limit(argument, lowest=True),
            "SetHardMaxByFreq": lambda argument: self._limit(argument, lowest=False),
            "GetMinDpmFreq": lambda argument: self._found(self.clocks.end(argument >> 16, 0)),
            "GetMaxDpmFreq": lambda argument: self._found(self.clocks.end(argument >> 16, -1)),
            "GetDpmFreqByIndex": lambda argument: self._found(
                self.clocks.level(argument >> 16, argument & 0xFFFF)
            ),
            "SetPptLimit": self._set_power_limit,
            "GetPptLimit": self._get_power_limit,
            "AllowGfxOff": lambda _: self._gfxoff(allowed=True),
            "DisallowGfxOff": lambda _: self._gfxoff(allowed=False),
            "PrepareMp1ForUnload": lambda _: self._enable(0),
            "ReenableAcDcInterrupt": lambda _: self._reenable(),
            "Mode1Reset": lambda _: self._mode1(_MAIN),
            "Mode2Reset": lambda _: self._mode2(),
        }
        if not 0 < chip.facts.mode2_since <= chip.options.smu_version:
            del handlers["Mode2Reset"]
        if chip.facts.mode1_by_debug:
            # UNSURE: Linux requests it from such firmware only through the debug mailbox
            # (smu_v13_0_0_ppt.c).
            del handlers["Mode1Reset"]
        for name in _ACCEPTED.split():
            handlers[name] = lambda _: (_OK, None)
        self._handlers = {
            names[f"PPSMC_MSG_{name}"]: handler
            for name, handler in handlers.items()
            if f"PPSMC_MSG_{name}" in names
        }
        self._debug_handlers: dict[int, Callable[[int], Answer]] = {
            _DEBUG_TEST: lambda argument: (_OK, argument + 1 & 0xFFFF_FFFF),
            _DEBUG_MODE1: lambda _: self._mode1(_DEBUG) if chip.options.debug_mode1 else (_OK, 0),
            _DEBUG_EXIT: lambda _: (0xFB, None),
        }
        chip.space.on_read_at(_FIRMWARE_FLAGS, lambda: _INTERRUPTS if self.running else 0)
        for box in (_MAIN, _DEBUG):
            self.on_write(box.message, partial(self._message, box))
            self.on_read(box.response, partial(self._response, box))

    def reset(self, scope: Reset) -> None:
        """Unload the firmware and discard all its settings."""
        self.running = False
        self.features = 0
        self._allowed = 0
        self._dram = 0
        self._pending.clear()
        self._resetting = None
        self.graphics.forbid()
        self.clocks.reset()
        self.metrics.reset()

    def start(self) -> None:
        """Start running after the PSP has accepted the firmware. Both mailboxes are free."""
        self.running = True
        self._allowed = (1 << 64) - 1
        self.set(_MAIN.response, _OK)
        self.set(_DEBUG.response, _OK)

    # ---- mailboxes ----------------------------------------------------------------------------

    def _message(self, box: _Mailbox, message: int) -> None:
        argument = self.get(box.argument)
        self.messages.append((message, argument))
        del self.messages[:-1000]
        if not self.running or self._silent(box):
            return
        if box in self._pending:
            self.chip.fault(f"SMU: message {message:#x} while another is under way; it is lost")
            return
        if self.get(box.response):
            self.chip.violation(f"SMU: message {message:#x} with the last response not cleared")
        self._pending.add(box)
        delay = self.chip.options.delays.smu_message
        if delay:
            self.chip.scheduler.after(delay, lambda: self._answer(box, message, argument))
        else:
            self._answer(box, message, argument)

    def _silent(self, box: _Mailbox) -> bool:
        faults = self.chip.faults
        return faults.smu_debug_silent if box is _DEBUG else faults.smu_silent

    def _answer(self, box: _Mailbox, message: int, argument: int) -> None:
        self._pending.discard(box)
        if self._silent(box):
            return
        forced = self._forced(message) if box is _MAIN else None
        if forced is not None:
            response, value = forced, None
        else:
            handlers = self._handlers if box is _MAIN else self._debug_handlers
            handler = handlers.get(message)
            response, value = (_UNKNOWN, None) if handler is None else handler(argument)
        if value is not None:
            self.set(box.argument, value)
        self.set(box.response, response)

    def _forced(self, message: int) -> int | None:
        """Return the response forced by the fault plan, or None."""
        faults = self.chip.faults
        if faults.smu_busy > 0:
            faults.smu_busy -= 1
            return _BUSY
        return faults.smu_responses.get(message)

    def _response(self, box: _Mailbox) -> int:
        """Return a response; once the answer to Mode1Reset has been read, schedule the reset."""
        value = self.get(box.response)
        if value and box is self._resetting:
            self._resetting = None
            self.chip.scheduler.after(_MODE1_GRACE, self.chip.mode1_reset)
        return value

    # ---- messages -----------------------------------------------------------------------------

    @staticmethod
    def _found(value: int | None) -> Answer:
        return (_FAILED, None) if value is None else (_OK, value)

    def _allow(self, mask: int, shift: int) -> Answer:
        self._allowed = self._allowed & ~(0xFFFF_FFFF << shift) | mask << shift
        return _OK, None

    def _enable(self, features: int) -> Answer:
        self.features = features & self._allowed
        return _OK, None

    def _enable_domain(self, domain: int) -> Answer:
        """Enable the allowed features of a power domain (FEATURE_PWR_DOMAIN_e)."""
        names = constants(self.chip.facts.smu.tables)
        if domain >= names.FEATURE_PWR_DOMAIN_COUNT:
            return _FAILED, None
        graphics = domain == names.FEATURE_PWR_GFX
        return self._enable(self.features | self._graphics_features if graphics else self._allowed)

    def _set_dram(self, part: int, keep: int) -> Answer:
        self._dram = self._dram & keep | part
        return _OK, None

    def _to_dram(self, argument: int) -> Answer:
        """Write a table for the driver; this model provides three of the firmware's tables."""
        names, wanted = constants(self.chip.facts.smu.tables), argument & 0xFFFF
        makers: dict[int, Callable[[], bytes]] = {
            names.TABLE_SMU_METRICS: self.metrics.table,
            names.TABLE_COMBO_PPTABLE: lambda: combo_table(self.chip.facts),
            names.TABLE_OVERDRIVE: lambda: overdrive_table(self.chip.facts),
        }
        make = makers.get(wanted)
        if make is None:
            return _FAILED, None
        if not self._dram or self._dram % _TABLE_ALIGNMENT:
            return _PREREQUISITE, None
        fault = self.chip.mm.write(0, self._dram, make(), _CLIENT)
        return (_FAILED if fault else _OK), None

    def _from_dram(self, argument: int) -> Answer:
        """Accept a table from the driver; read its first bytes, so that a bad address fails."""
        if not self._dram or self._dram % _TABLE_ALIGNMENT:
            return _PREREQUISITE, None
        _, fault = self.chip.mm.read(0, self._dram, 64, _CLIENT)
        return (_FAILED if fault else _OK), None

    def _limit(self, argument: int, *, lowest: bool) -> Answer:
        """Set a clock's bound, which requires at least one enabled feature."""
        if not self.features:
            return _PREREQUISITE, None
        return (_OK if self.clocks.limit(argument, lowest=lowest) else _FAILED), None

    def _set_power_limit(self, argument: int) -> Answer:
        watts = argument & 0xFFFF
        if not _LEAST_POWER <= watts <= self.chip.facts.board.power_limit:
            return _FAILED, None
        self.metrics.power_limit = watts
        return _OK, None

    def _get_power_limit(self, argument: int) -> Answer:
        """Answer for a power source (bits 16 to 23) and a controller: only the first has a
        limit."""
        source, controller = argument >> 16 & 0xFF, argument >> 24
        return (_FAILED, None) if source > 1 or controller else (_OK, self.metrics.power_limit)

    def _gfxoff(self, *, allowed: bool) -> Answer:
        (self.graphics.allow if allowed else self.graphics.disallow)()
        return _OK, None

    def _reenable(self) -> Answer:
        self.announcements.reenable()
        return _OK, None

    def _mode2(self) -> Answer:
        """Reset, then answer: the kernel loads IMU after reading the answer (smu_v13_0_10.c)."""
        if not self.chip.faults.mode2_ignored:
            self.features &= ~self._graphics_features
            self.graphics.switch_on()
            self.chip.mode2_reset()
        return _OK, None

    def _mode1(self, box: _Mailbox) -> Answer:
        """Answer, then reset; a driver that reads late gets all ones instead of the answer."""
        self._resetting = box
        self.chip.scheduler.after(_MODE1_UNREAD, self.chip.mode1_reset)
        return _OK, None
