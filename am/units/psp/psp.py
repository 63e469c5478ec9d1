"""PSP, the security processor: its bootloader, its command ring, and the loading of firmware.

Mechanism only: the chip's facts and boot.py define which images are loaded in which order. Source:
Linux 6.12 psp_v13_0.c (mailboxes, ring), amdgpu_psp.c (commands, fences), psp_gfx_if.h (layouts).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ugpu.am.chip import remedies as advice
from ugpu.am.chip.chip import Chip
from ugpu.am.regs import constants, structs
from ugpu.am.units.memory import Carveout
from ugpu.am.units.nbio import Nbio
from ugpu.am.units.psp import commands as psp_commands
from ugpu.am.units.psp.commands import PRIVATE_SIZE, Command, refusal, refused
from ugpu.am.units.psp.stage import FRAME_SIZE, RING_SIZE, PrivateBuffer
from ugpu.hcq.bare.bus import ALL_ONES
from ugpu.hcq.errors import FirmwareError, FirmwareRejected, FirmwareSilent, UnitTimeout
from ugpu.hcq.registers.fields import RegisterValue

log = logging.getLogger(__name__)

_MOST_FRAMES = RING_SIZE // FRAME_SIZE - 1  # equal pointers mean an empty ring
_FIRST_LOOK_S = 2e-3  # our choice: the PSP needs longer for an image than a message takes
DEFAULT_TMR_SIZE = 4 << 20
RING_TYPE_KM = 2
_READY, _STATUS = 0x8000_0000, 0x8000_FFFF
# TIMEOUT: the kernel waits 10 times usec_timeout (100 ms) for the bootloader, and about 2 s for a
# fence; DRAM training makes some boards slower.
BOOTLOADER_LIMIT_S = 5.0
FENCE_LIMIT_S = 5.0
_NEXT_LIMIT_S = 0.1  # for each command after the first, our choice: images load in milliseconds
_NOTE, _COUNT = 0x75470000, 0xFF
_REFUSED = 0xFE  # in place of a count: a component was refused
HANDSHAKE_S = 0.02  # the kernel's delay after mailbox commands that start something


def noted_refusal(chip: Chip) -> bool:
    """Return whether a ugpu process has seen the bootloader reject a component since a reset."""
    return int(chip.mmhub.MMVM_CONTEXT14_PAGE_TABLE_END_ADDR_LO32.read()) == _NOTE | _REFUSED


class Psp:
    """Drive one chip's PSP. The PSP owns the memory that it is given until the chip is reset."""

    def __init__(self, chip: Chip, nbio: Nbio, carveout: Carveout) -> None:
        self.chip = chip
        self.nbio = nbio
        self.ring = carveout.psp_ring
        self.command = carveout.psp_command
        self._frames = bytearray()  # ring content up to the last frame written
        self.carveout = carveout
        self.stage = PrivateBuffer(chip, nbio, carveout)  # or what am.boot.reach chose
        self.fence_value = 0
        self._held: list[Command] = []  # see `run`
        # Commands whose answers were not read yet, and the answers' places in VRAM: see `run`.
        self.unread: list[tuple[Command, int]] = []
        # A register of a translation context that ugpu keeps off. Nothing else uses it, it outlives
        # a process, and every reset that brings the bootloader back clears it too.
        self._note = chip.mmhub.MMVM_CONTEXT14_PAGE_TABLE_END_ADDR_LO32
        self.sleep: Callable[[float], None] = chip.clock.sleep
        self.limit_s = BOOTLOADER_LIMIT_S
        self._ids = constants("psp_gfx_if")
        self._layouts = structs("psp_gfx_if")
        self.fence = self.command + self._layouts.psp_gfx_cmd_resp.size  # read with the answer

    # ---- bootloader --------------------------------------------------------------------------

    def sign_of_life(self) -> int:
        """Return the secure OS's sign of life: 0 if it is not running, all ones if the chip does
        not respond."""
        return self.chip.read_again(self.chip.mailbox(81))

    def alive(self) -> bool:
        """Return whether the secure OS runs: its sign of life is neither zero nor all ones. Only
        this driver starts it."""
        bus, register = self.chip.bus, self.chip.mailbox(81)
        if bus.relied(register) == 0:
            return False
        sign = self.sign_of_life()
        if sign == ALL_ONES:
            self.chip.check_present("reading the PSP's sign of life")
        if not sign:
            bus.rely(register, sign)
        return sign not in (0, ALL_ONES)

    def bootloader_failed(self) -> bool:
        """Return whether the bootloader has refused a component, after which only a reset helps.

        Where its status does not report this, the process that saw the refusal left a note of it.
        """
        note = int(self._note.read())
        self.chip.bus.rely(self._note, note)
        if note == _NOTE | _REFUSED:
            return True
        if not self.chip.generation.bootloader_tells_refusal:
            return False
        return bool(refusal(int(self.chip.mailbox(35).read())))

    def components_done(self) -> int:
        """Return the number of components that a ugpu process sent to the bootloader before it
        died; 0 for a fresh bootloader. The bootloader does not report the number, and continues
        from there."""
        note = self.chip.bus.relied(self._note)
        if note is None:
            note = int(self._note.read())
        noted = note & ~_COUNT == _NOTE and note & _COUNT != _REFUSED
        return note & _COUNT if noted else 0

    def _command(self, position: int, command: int) -> None:
        """Have the bootloader take component `position`. ORDER: write the note first, with nothing
        in between: the bootloader takes the component on this command, and not a second time."""
        self._note.write(_NOTE | position + 1)
        self.chip.mailbox(35).write(command)

    def forget_components(self, *, refused: bool = False) -> None:
        """Note that no component was sent, or that the bootloader refused one."""
        self._note.write(_NOTE | _REFUSED if refused else 0)

    def load_component(self, position: int, name: str, command: int, image: bytes) -> None:
        """Send component `position` to a bootloader that is ready, and wait until it is ready
        again. FirmwareRejected or FirmwareSilent if it does not take the component."""
        self._stage(image)
        self._command(position, command)
        self.chip.await_answer(_FIRST_LOOK_S)
        self.wait_bootloader(name, "done")

    def load_secure_os(self, position: int, name: str, command: int, image: bytes) -> None:
        """Send the last component and wait for its sign of life."""
        self._stage(image)
        sign = self.chip.mailbox(81)
        before = self.chip.bus.relied(sign)
        if before is None:
            before = int(sign.read())
        self._command(position, command)
        self.sleep(HANDSHAKE_S)
        self.wait_secure_os(name, before)

    def wait_secure_os(self, name: str = "SOS", before: int = 0) -> None:
        """Wait until the sign of life of `name`, which was started, differs from `before`."""
        sign = self.chip.mailbox(81)
        self.chip.bus.rely(sign, None)
        try:
            self.chip.wait(
                sign,
                lambda value: value != before,
                unit="PSP",
                waiting_for="sign of life of the secure OS",
                limit_s=self.limit_s,
            )
        except UnitTimeout as error:
            raise self._failed(name, "sign of life", error) from error

    def wait_bootloader(self, name: str, what: str = "ready") -> None:
        """Wait until the bootloader is ready for a component."""
        if int(self.chip.mailbox(35).current()) == _READY:
            return
        tells = self.chip.generation.bootloader_tells_refusal

        def done(value: RegisterValue) -> bool:
            if tells and refusal(value):
                raise refused(name, refusal(value))
            return value == _READY  # the full word: a dead bus has bit 31 set too

        try:
            self.chip.wait(
                self.chip.mailbox(35),
                done,
                unit="PSP",
                waiting_for=f"bootloader {what} ({name})",
                limit_s=self.limit_s,
            )
        except UnitTimeout as error:
            raise self._failed(name, what, error) from error

    def _failed(self, name: str, what: str, error: UnitTimeout) -> FirmwareError:
        """The error for a wait that reached its limit: a refusal if the status has one by now.

        Older bootloaders may use those bits otherwise, so the bits do not end a wait early.
        """
        found = refusal(int(self.chip.mailbox(35).read()))
        if found:
            return refused(name, found)
        return FirmwareSilent(
            f"the PSP bootloader does not answer ({name}, {what})",
            image=name,
            limit_s=self.limit_s,
            state=error.facts.get("state"),
            remedy=advice.POWER_CYCLE,
        )

    def _stage(self, image: bytes) -> None:
        """Put `image` where the bootloader reads it, and write the address to its register."""
        register, place = self.chip.mailbox(36), self.stage.put(image) >> 20
        if self.chip.bus.relied(register) != place:
            register.write(place)
            self.chip.bus.rely(register, place)

    def forget_staged(self) -> None:
        """Forget the content of the PSP's memory and of the image address register: a reset may
        have changed them."""
        self.stage.forget()
        self.chip.bus.rely(self.chip.mailbox(36), None)

    # ---- ring --------------------------------------------------------------------------------

    def create_ring(self, *, destroy_first: bool) -> None:
        """Create the command ring. `destroy_first`: destroy the one that a previous driver left."""
        if destroy_first:
            self.destroy_ring()
        self.unread, self._held = [], []
        self._wait_mailbox("ready for a ring", _READY)
        self.stage.clear_ring()
        address = self.carveout.mc(self.ring)
        with self.chip.transport.batch():
            self.chip.mailbox(69).write(address & 0xFFFF_FFFF)
            self.chip.mailbox(70).write(address >> 32)
            self.chip.mailbox(71).write(RING_SIZE)
        self.chip.mailbox(64).write(RING_TYPE_KM << 16)
        self.sleep(HANDSHAKE_S)
        self._wait_mailbox("ring created", _STATUS)
        write_pointer = int(self.chip.mailbox(67).read()) % (RING_SIZE // 4)
        self._frames = bytearray(4 * write_pointer)

    def destroy_ring(self) -> None:
        self.chip.mailbox(64).write(self._ids.GFX_CTRL_CMD_ID_DESTROY_RINGS)
        self.sleep(HANDSHAKE_S)
        self._wait_mailbox("ring destroyed", _READY)

    def _wait_mailbox(self, what: str, mask: int) -> None:
        def done(value: RegisterValue) -> bool:
            if value & _READY and value & mask & 0xFFFF:
                raise FirmwareRejected(
                    f"the PSP refused: {what}",
                    image="ring",
                    waiting_for=what,
                    status=value & 0xFFFF,
                    remedy=advice.MODE1,
                )
            return value & mask == _READY

        try:
            self.chip.wait(
                self.chip.mailbox(64),
                done,
                unit="PSP",
                waiting_for=what,
                limit_s=self.limit_s,
            )
        except UnitTimeout as error:
            raise FirmwareSilent(
                f"the PSP does not respond ({what})",
                waiting_for=what,
                limit_s=self.limit_s,
                state=error.facts.get("state"),
                remedy=advice.MODE1,
            ) from error

    def strike_mode1(self) -> None:
        """Request a whole-chip reset without waiting; FirmwareSilent if it cannot be requested.

        Source: psp_gfx_if.h, and psp_v11_0.c for when the command may be sent. UNSURE: Linux sends
        it to secure OS 3.1, 11 and 12 only; a board would show whether 13 obeys.
        """
        self._wait_mailbox("ready for mode1", _STATUS)
        self.chip.mailbox(64).write(self._ids.GFX_CTRL_CMD_ID_MODE1_RST)

    # ---- commands ----------------------------------------------------------------------------

    def run(self, *commands: Command, later: bool = False, more: bool = False) -> None:
        """Run commands in order and wait for them; FirmwareRejected for the first that is refused.
        Where the ring takes many (PrivateBuffer): later: leave the answers in VRAM for
        `check_unread`; more: run the commands with the next ones.

        Such a ring gets as many commands at once as fit. UNSURE: the kernel gives the ring one
        command at a time. Each frame has a fence of its own; a board would show whether later
        frames run after one that was refused.
        """
        left, self._held = [*self._held, *commands], []
        if more and self.stage.takes_many:
            self._held = left
            return
        while left:
            if len(self._frames) == RING_SIZE:
                self._frames.clear()
            count, size = 1, left[0].size
            free = (RING_SIZE - len(self._frames)) // FRAME_SIZE
            most = min(free, _MOST_FRAMES, len(left)) if self.stage.takes_many else 1
            while count < most:
                size += left[count].size
                if size > PRIVATE_SIZE - RING_SIZE:
                    break
                count += 1
            self._run(left[:count], later=later and self.stage.takes_many)
            del left[:count]

    def _run(self, group: Sequence[Command], *, later: bool, look: int | None = None) -> bytes:
        """Run commands that fit in front of the ring, each behind its image. look: _wait_fence."""
        layout = self._layouts.psp_gfx_cmd_resp
        self._read_from(self.ring - sum(command.size for command in group))
        first, places = self.fence_value + 1, self.stage.places(group)
        buffers = []
        for command, (image, place) in zip(group, places, strict=True):
            buffer = layout.new()
            kind = command.kind
            buffer.cmd_id = kind if isinstance(kind, int) else self._ids[f"GFX_CMD_ID_{kind}"]
            command.fill(buffer, image)
            buffers.append(bytes(buffer))
            self.fence_value += 1
            self._frames += self._frame(place)
        self.stage.send(group, buffers, bytes(self._frames))
        self.chip.mailbox(67).write(len(self._frames) % RING_SIZE // 4)
        self.chip.await_answer(_FIRST_LOOK_S)
        seen = self._wait_fence(group, first, self.fence if look is None else look)
        offset = layout.offset_of("resp.status")
        answers = [(command, at + offset) for command, (_, at) in zip(group, places, strict=True)]
        if later:
            self.unread += answers
        else:
            for command, place in answers:
                self._check(command, place)
        return seen

    def _read_from(self, start: int) -> None:
        """Read unread answers that lie at `start` or above, where VRAM is about to be reused."""
        for entry in [entry for entry in self.unread if entry[1] >= start]:
            if any(self.chip.vram.read(entry[1], 4)):
                self.check_unread()  # an earlier one may have been refused first
            self.unread.remove(entry)

    def unread_places(self) -> list[int]:
        """Return the places in VRAM of the answers that were not read yet."""
        return [place for _, place in self.unread]

    def check_unread(self, statuses: Sequence[int] = ()) -> None:
        """Raise FirmwareRejected for the first refused command of those whose answers were left in
        VRAM. statuses: the values read at the places of `unread`."""
        left, self.unread = self.unread, []
        for number, (command, place) in enumerate(left):
            self._check(command, place, statuses[number] if statuses else None)

    def _check(self, command: Command, place: int, status: int | None = None) -> None:
        if status is None:
            status = int.from_bytes(self.chip.vram.read(place, 4), "little")
        if not command.accepts(status):
            # The kernel only warns here, because some PSP versions leave a status behind. A refused
            # image that is found later, as a hang, is worse.
            raise FirmwareRejected(
                f"the PSP refused {command.what}",
                image=command.what,
                status=status,
                remedy=advice.FIRMWARE if command.image else advice.MODE1,
            )

    def _frame(self, command: int) -> bytes:
        """Return the ring's frame for the command at `command`."""
        frame = self._layouts.psp_gfx_rb_frame.new()
        buffer, fence = self.carveout.mc(command), self.carveout.mc(self.fence)
        frame.cmd_buf_addr_lo, frame.cmd_buf_addr_hi = buffer & 0xFFFF_FFFF, buffer >> 32
        frame.fence_addr_lo, frame.fence_addr_hi = fence & 0xFFFF_FFFF, fence >> 32
        frame.fence_value = self.fence_value
        return bytes(frame).ljust(FRAME_SIZE, b"\0")

    def _wait_fence(self, group: Sequence[Command], first: int, start: int) -> bytes:
        """Wait for the last of a group, whose fences begin at `first`. Return VRAM from `start`."""
        seen = 0

        def probe() -> bytes | None:
            nonlocal seen
            data = self.chip.vram.read(start, self.fence + 4 - start)
            seen = int.from_bytes(data[-4:], "little")
            if seen == ALL_ONES:
                self.chip.check_present(f"waiting for the PSP ({group[-1].what})")
            return data if seen == self.fence_value else None

        try:
            return self.chip.clock.wait_until(
                probe,
                unit="PSP",
                waiting_for=f"fence of {group[-1].what}",
                limit_s=FENCE_LIMIT_S + (len(group) - 1) * _NEXT_LIMIT_S,
            )
        except UnitTimeout as error:
            ended = seen - first + 1
            what = group[ended if 0 < ended < len(group) else 0].what
            raise FirmwareSilent(
                f"the PSP has not completed {what}",
                image=what,
                limit_s=FENCE_LIMIT_S,
                mailbox=int(self.chip.mailbox(64).read()),
                remedy=advice.MODE1,
            ) from error

    def ask(self, *commands: Command) -> list[bytes]:
        """Run commands that fit in front of the ring, in order; return what `Command.answer` names
        of their responses. FirmwareRejected for the first that is refused."""
        if not self.stage.takes_many:
            return [self._ask(command) for command in commands]
        layout = self._layouts.psp_gfx_cmd_resp
        response, places = layout.offset_of("resp"), self.stage.places(commands)
        starts = [place + response for _, place in places]
        data = self._run(commands, later=True, look=starts[0])
        del self.unread[-len(commands) :]
        answers = self._answers(commands, data, starts)
        if not all(map(any, answers)):  # RACE: answer and fence may have come between their reads
            answers = self._answers(commands, self.chip.vram.read(starts[0], len(data)), starts)
        return answers

    def _answers(
        self, commands: Sequence[Command], data: bytes, starts: Sequence[int]
    ) -> list[bytes]:
        """Check and return answers. data: VRAM from the first response on."""
        answers = []
        for command, start in zip(commands, starts, strict=True):
            response = data[start - starts[0] :]
            self._check(command, start, int.from_bytes(response[:4], "little"))
            place, size = command.answer
            answers.append(response[place : place + size])
        return answers

    def _ask(self, command: Command) -> bytes:
        self.run(command)
        response, (place, size) = self._layouts.psp_gfx_cmd_resp.offset_of("resp"), command.answer
        return self.chip.vram.read(self.command + response + place, size)

    def load_toc(self, image: bytes) -> int:
        """Send the table of contents; return the size of the TMR that the images need."""
        return int.from_bytes(self.ask(psp_commands.load_toc(image))[0], "little")

    def setup_tmr(self, address: int, size: int) -> Command:
        """Return the command that gives VRAM [address, address+size) to the firmware for good."""
        return psp_commands.setup_tmr(self.carveout, address, size)
