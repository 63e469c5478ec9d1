"""SMU: the power management processor's mailbox and its metrics table.

Messages and tables are those of the chip's interface (am/generations). Source: Linux 6.12 smu_cmn.c
(protocol and response codes), smu_v13_0_0_ppsmc.h (messages), smu13_driver_if_v13_0_0.h (tables).
"""

from __future__ import annotations

import contextlib
import logging

from ugpu.am.chip import remedies as advice
from ugpu.am.chip.chip import Chip
from ugpu.am.regs import constants, structs
from ugpu.am.units.memory import Carveout
from ugpu.am.units.nbio import Nbio
from ugpu.hcq.bare.bus import ALL_ONES
from ugpu.hcq.bare.chip import batched
from ugpu.hcq.bare.program import HostPrograms
from ugpu.hcq.errors import DeviceLost, FirmwareRejected, FirmwareSilent, UnitTimeout
from ugpu.hcq.registers.layout import Struct

log = logging.getLogger(__name__)

OK = 0x01
UNKNOWN = 0xFE
BUSY = 0xFC
RESPONSES = {
    0x01: "ok",
    0xFF: "failed",
    UNKNOWN: "unknown message",
    0xFD: "prerequisite not met",
    BUSY: "busy",
    0xFB: "end of debug data",
}
# TIMEOUT: the kernel waits usec_timeout (100 ms) times 20 per message.
MESSAGE_LIMIT_S = 2.0
# TIMEOUT: messages take far less (0.1 ms); our choice, once for each reset of a chip that hangs
SETTLE_LIMIT_S = 0.1


class Smu:
    """Drive one chip's SMU. One message at a time."""

    def __init__(self, chip: Chip, nbio: Nbio, carveout: Carveout) -> None:
        self.chip = chip
        self.nbio = nbio
        self.carveout = carveout
        self.limit_s = MESSAGE_LIMIT_S
        self.version = 0  # last result of GetSmuVersion
        self.stuck = False  # a message was not answered: the SMU responds only after a reset
        self._idle = False  # the last message was answered, and none was sent since
        self._asked: dict[str, list[int]] = {}  # argument, response, result of messages in a list
        self._sending = False  # an exception may have kept the last message from being sent
        self.interface = interface = chip.facts.smu
        self._messages = constants(interface.messages)
        self._interface = constants(interface.tables)
        self._tables = structs(interface.tables)

    def send(self, message: str, argument: int = 0) -> int:
        """Send PPSMC_MSG_<message>; returns the result. FirmwareSilent, FirmwareRejected."""
        self.tell(message, argument)
        return int(self.chip.mp1.MP1_SMN_C2PMSG_82.read())

    def tell(self, message: str, argument: int = 0) -> None:
        """Send a message that has no result; see `send`."""
        self._check(message, argument, self._exchange(message, argument))

    def _exchange(self, message: str, argument: int) -> int:
        """Send a message and return the response, BUSY after a while.

        ORDER: response cleared, argument, message: writing the message starts the SMU.
        """
        number = self._messages[f"PPSMC_MSG_{message}"]

        def attempt() -> int | None:
            if self._sending:
                self._settle()
            elif not self._idle:
                self._wait_response(message, argument, "previous message finished")
            self._sending = True
            self.post(number, argument)
            self._sending = False
            response = self._wait_response(message, argument, "response")
            self._idle = True
            return None if response == BUSY else response

        try:
            return self.chip.clock.wait_until(
                attempt, unit="SMU", waiting_for=f"end of busy ({message})", limit_s=self.limit_s
            )
        except UnitTimeout:
            return BUSY

    def _check(self, message: str, argument: int, response: int) -> None:
        if response != OK:
            meaning = RESPONSES.get(response, "undefined")
            raise FirmwareRejected(
                f"the SMU responded to {message} with {response:#x} ({meaning})",
                image="SMU",
                request=message,
                status=response,
                argument=argument,
                remedy=advice.FIRMWARE if response == UNKNOWN else advice.MODE1,
            )

    # ---- messages as steps (hcq.bare.program)
    # --------------------------------------------

    def ask(self, message: str, argument: int = 0) -> None:
        """As a step: send a message and keep its result for `answer`."""
        recorder, mp1 = self.chip.bus.recorder, self.chip.mp1
        asked = self._asked[message] = [argument]
        if recorder is None:
            response = self._exchange(message, argument)
            if response == BUSY:  # after a while
                self._check(message, argument, response)
            asked += [response, int(mp1.MP1_SMN_C2PMSG_82.read())]
            return
        # The message before it was answered.
        self.post(self.message_number(message), argument)
        recorder.wait(mp1.MP1_SMN_C2PMSG_90.index, ALL_ONES, 0, differs=True)
        recorder.keep(mp1.MP1_SMN_C2PMSG_90.index, asked.append)
        recorder.keep(mp1.MP1_SMN_C2PMSG_82.index, asked.append)

    def answer(self, message: str) -> int:
        """Return the result of a message of a step that has ended. A message that the SMU was too
        busy for is sent again. FirmwareSilent, FirmwareRejected, as from `send`."""
        argument, response, result = self._asked.pop(message)
        self._idle = True
        if response == BUSY:
            return self.send(message, argument)
        self._check(message, argument, response)
        return result

    def check_asked(self) -> None:
        """Check a list that has not ended: FirmwareSilent if the SMU is the cause, that is, if its
        last message has no response."""
        if not self._asked or self.chip.mp1.MP1_SMN_C2PMSG_90.read():
            return
        number = int(self.chip.mp1.MP1_SMN_C2PMSG_66.read())
        for message, (argument, *_) in self._asked.items():
            if self.message_number(message) == number:
                self._wait_response(message, argument, "response")

    @batched
    def post(self, number: int, argument: int) -> None:
        """Send without waiting: for resets, after which the SMU may not respond."""
        mp1 = self.chip.mp1
        self._idle = False
        mp1.MP1_SMN_C2PMSG_90.write(0)
        mp1.MP1_SMN_C2PMSG_82.write(argument)
        mp1.MP1_SMN_C2PMSG_66.write(number)

    @batched
    def strike_mode1(self) -> None:
        """Request a reset of the whole chip through the debug mailbox, without waiting.

        Works even if the firmware is stuck. Source: Linux commit 29b1b0b06def ("use debug port for
        mode1 reset request on smu 13&14"), which waits for no response either; smu_v13_0.c for the
        registers; tinygrad 0.14 does the same on boards.
        """
        mp1 = self.chip.mp1
        mp1.MP1_SMN_C2PMSG_54.write(0)
        mp1.MP1_SMN_C2PMSG_53.write(0)
        mp1.MP1_SMN_C2PMSG_75.write(self.chip.generation.smu_debug_mode1_message)

    def mode1(self) -> None:
        """Request a reset of the whole chip, without waiting, in the way that the chip supports."""
        if self.chip.facts.mode1_by_debug:
            self.strike_mode1()
        else:
            self._settle()
            self.post(self.message_number("Mode1Reset"), 0)

    def _settle(self) -> None:
        """Wait a while for the end of a message whose sender was interrupted: a message sent before
        that end is lost. Does not wait for stuck firmware."""
        if self.stuck:
            return
        with contextlib.suppress(UnitTimeout):
            self.chip.wait(
                self.chip.mp1.MP1_SMN_C2PMSG_90,
                lambda value: value != 0,
                unit="SMU",
                waiting_for="end of the message before",
                limit_s=SETTLE_LIMIT_S,
            )

    def message_number(self, message: str) -> int:
        return self._messages[f"PPSMC_MSG_{message}"]

    def _wait_response(self, message: str, argument: int, what: str) -> int:
        try:
            return int(
                self.chip.wait(
                    self.chip.mp1.MP1_SMN_C2PMSG_90,
                    lambda value: value != 0,
                    unit="SMU",
                    waiting_for=what,
                    limit_s=self.limit_s,
                )
            )
        except UnitTimeout as error:
            self.stuck = True
            raise FirmwareSilent(
                f"the SMU does not respond to {message} ({what})",
                unit="SMU",
                message_name=message,
                argument=argument,
                limit_s=self.limit_s,
                remedy=advice.MODE1,
                **self.state(),
            ) from error

    def state(self) -> dict[str, object]:
        """Return the mailbox registers, for reports. Never raises."""
        try:
            return {
                "smu_message": int(self.chip.mp1.MP1_SMN_C2PMSG_66.read()),
                "smu_argument": int(self.chip.mp1.MP1_SMN_C2PMSG_82.read()),
                "smu_response": int(self.chip.mp1.MP1_SMN_C2PMSG_90.read()),
                "smu_debug_response": int(self.chip.mp1.MP1_SMN_C2PMSG_54.read()),
            }
        except DeviceLost:
            return {"smu_response": ALL_ONES}

    # ---- life --------------------------------------------------------------------------------

    def start(self, programs: HostPrograms) -> None:
        """Check versions, send the address of the table buffer, switch the SMU's features on. Only
        the features are needed now. UNSURE: Linux and tinygrad send the address first; the SMU
        writes there when a table is requested."""
        self._idle = False  # an answer from before it was loaded means nothing
        programs.leave(self._ask_rest, then=self._take_rest)
        self.tell("EnableAllSmuFeatures")
        # With GFXOFF the graphics core's registers have no power: see am.device.rest, which allows
        # it.
        try:
            self.tell("DisallowGfxOff")
        except FirmwareRejected as error:
            log.warning("%s; it is off where the firmware does not know it", error)

    def _table_address(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Return the messages and arguments that set the address of the table buffer."""
        address = self.carveout.mc(self.carveout.smu_table)
        return (
            ("SetDriverDramAddrHigh", address >> 32),
            ("SetDriverDramAddrLow", address & 0xFFFF_FFFF),
        )

    def _ask_rest(self) -> None:
        """As a step: do the part of `start` that is not needed for the features."""
        self.ask("GetSmuVersion")
        self.ask("GetDriverIfVersion")
        for message, argument in self._table_address():
            self.ask(message, argument)

    def _take_rest(self, _: object) -> None:
        """Take the answers to `_ask_rest`."""
        self._take_versions(self.answer("GetSmuVersion"), self.answer("GetDriverIfVersion"))
        for message, _ in self._table_address():
            self.answer(message)

    def _take_versions(self, version: int, interface: int) -> None:
        self.version = version
        if interface != self.interface.version:
            log.warning(
                "SMU %s has interface version %#x, expected %#x: sensors may be wrong",
                version_text(self.version),
                interface,
                self.interface.version,
            )

    def enable_graphics(self) -> None:
        """Switch the features of the graphics core on again after its reset. The SMU still forbids
        GFXOFF: the kernel does not repeat that (smu_v13_0_10.c)."""
        self.tell("EnableAllSmuFeatures", self._interface.FEATURE_PWR_GFX)

    def running(self) -> bool:
        """Return whether firmware was loaded and started; it may no longer answer."""
        flags = self.chip.bus.read32(self.chip.generation.smu_firmware_flags // 4)
        return bool(flags & 1)

    def alive(self) -> bool:
        """Return whether the SMU answers a test message."""
        try:
            self.send("TestMessage", 1)
        except (FirmwareSilent, FirmwareRejected):
            return False
        return True

    def levels(self, clock: str) -> tuple[float, float]:
        """Return the lowest and the highest level of a clock (PPCLK_...), in Hz. The argument has
        the clock in its upper half, the answer is in MHz (Linux 6.12 smu_v13_0.c,
        smu_v13_0_get_dpm_ultimate_freq)."""
        selected = self._interface[f"PPCLK_{clock}"] << 16
        low, high = (self.send(f"Get{end}DpmFreq", selected) for end in ("Min", "Max"))
        return low * 1e6, high * 1e6

    def table(self, name: str, size: int) -> bytes:
        """Let the SMU write a table (TABLE_...), and return a copy of its first bytes, a multiple
        of 4."""
        self.tell("TransferTableSmu2Dram", self.table_number(name))
        return self.chip.vram.read(self.carveout.smu_table, size)

    def table_number(self, name: str) -> int:
        """The SMU's number of a table (TABLE_...)."""
        return self._interface[name]

    def metrics(self) -> Struct:
        """Let the SMU write its metrics table, and return a copy (SmuMetrics_t)."""
        layout = self._tables.SmuMetricsExternal_t
        raw = self.table("TABLE_SMU_METRICS", -(-layout.size // 4) * 4)
        table: Struct = layout.view(raw).SmuMetrics
        return table


def version_text(version: int) -> str:
    """Format a version as the kernel prints it: major.minor.debug."""
    return f"{version >> 16 & 0xFF}.{version >> 8 & 0xFF}.{version & 0xFF}"
