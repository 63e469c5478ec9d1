"""Commands of `ugpu debug`, named after gdb's."""

from __future__ import annotations

import cmd
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

from ugpu.hcq.errors import UgpuError, UsageError
from ugpu.tools.base.console import Output
from ugpu.tools.debug.stepper.session import Halt, Session, Way

PROMPT = "(ugpu) "
_MOST_BYTES = 4096
_LINES = 8  # of assembly around the instruction
_REGISTER = re.compile(r"\$?(?P<name>[\w%.]+)(?:\[(?P<lane>\d+)\])?")
_ALIASES = {
    "b": "break", "tb": "tbreak", "c": "continue", "si": "stepi", "s": "step", "n": "step",
    "ni": "stepi", "p": "print", "i": "info", "d": "delete", "q": "quit", "r": "run", "l": "list",
    "disas": "disassemble", "fin": "finish",
}  # fmt: skip


class Commands(cmd.Cmd):
    """Read commands until one continues the program. lines: of a file, in place of a terminal.
    After the last line the program continues without halts; a line that fails ends the program."""

    prompt = PROMPT
    doc_header = "commands (help COMMAND):"

    def __init__(self, out: Output, lines: list[str] | None = None) -> None:
        super().__init__()
        self.out = out
        self.session = Session(self.halted)
        self.halts: list[dict[str, object]] = []
        self._lines: Iterator[str] | None = None if lines is None else iter(lines)
        self._wave = 0  # the wave of the group whose registers are shown
        self._words: list[str] = []

    # ---- reading ------------------------------------------------------------------------------

    def before(self) -> bool:
        """Read commands before the program starts; return whether to start it."""
        self._read()
        return not self.session.quitting

    def halted(self, halt: Halt) -> None:
        """Print why and where a wave has halted, and read commands."""
        wave = halt.wave
        self._wave = wave.wave
        self.halts.append(
            {"pc": wave.pc, "kernel": halt.kernel.name, "offset": wave.pc - halt.kernel.entry,
             "group": list(wave.group), "wave": wave.wave, "reasons": halt.reasons}
        )  # fmt: skip
        for reason in halt.reasons:
            self.out.say(reason, style="bold")
        self._say_where(halt)
        self._read()

    def _say_where(self, halt: Halt) -> None:
        wave, kernel = halt.wave, halt.kernel
        group = ", ".join(map(str, wave.group))
        self.out.say(
            f"{kernel.where(wave.pc)} group ({group}) wave {wave.wave} exec {wave.execute:#x}"
        )
        row = kernel.row(wave.pc)
        if row is not None:
            self.out.say(f"{row.file}:{row.line}  {row.text}".rstrip())
        self.out.say(f"=> {wave.pc:#x}  {kernel.listing.get(wave.pc, '')}".rstrip())

    def _read(self) -> None:
        if self._lines is None:
            self.cmdloop()
            return
        for line in self._lines:
            if line.strip() and not line.lstrip().startswith("#"):
                self.out.say(f"{PROMPT}{line.strip()}", style="dim")
                if self.onecmd(line):
                    return
        self.session.detached = True

    def onecmd(self, line: str) -> bool:
        """Run a command; return whether the program continues. At a terminal errors are printed,
        not raised."""
        try:
            return bool(super().onecmd(line))
        except UgpuError as error:
            if self._lines is not None:
                raise
            self.out.say(str(error), style="red")
            return False

    def parseline(self, line: str) -> tuple[str | None, str | None, str]:
        """Accept short forms of commands too."""
        word, argument, whole = super().parseline(line)
        return (_ALIASES.get(word, word) if word else word), argument, whole

    def emptyline(self) -> bool:
        """Repeat nothing: an empty line must not step by accident."""
        return False

    def default(self, line: str) -> None:
        """Reject an unknown command."""
        if line == "EOF":
            self.do_quit("")
            return
        commands = ", ".join(
            name[3:] for name in sorted(self.get_names()) if name.startswith("do_")
        )
        raise UsageError(f"expected one of {commands}, got {line.split()[0]!r}")

    def postcmd(self, stop: bool, line: str) -> bool:
        """Leave the prompt when the program ends."""
        return stop or self.session.quitting

    # ---- continuing ---------------------------------------------------------------------------

    def _go(self, way: Way, text: str = "") -> bool:
        self._halt()
        if text and not (text.isdecimal() and int(text)):
            raise UsageError(f"expected a number of steps of at least 1, got {text!r}")
        self.session.way, self.session.steps = way, int(text or 1)
        return True

    def do_run(self, text: str) -> bool:
        """run: start the program, or let it go on to the next halt."""
        return True

    def do_continue(self, text: str) -> bool:
        """continue: go on to the next halt."""
        return True

    def do_stepi(self, text: str) -> bool:
        """stepi [N]: execute one instruction, or N. At a barrier or the wave's end another wave
        comes next."""
        return self._go(Way.STEP, text)

    def do_step(self, text: str) -> bool:
        """step [N]: go on to the next line of kernel IR or source."""
        return self._go(Way.LINE, text)

    def do_finish(self, text: str) -> bool:
        """finish: run this wave to its end or its next barrier."""
        return self._go(Way.FINISH)

    def do_detach(self, text: str) -> bool:
        """detach: run the program to its end without further halts."""
        self.session.detached = True
        return True

    def do_quit(self, text: str) -> bool:
        """quit: end the program."""
        if self.session.halt is None:
            self.session.quitting = True
        else:
            self.session.quit()
        return True

    # ---- halts --------------------------------------------------------------------------------

    def do_break(self, text: str) -> None:
        """break PLACE: halt at KERNEL, KERNEL+OFFSET, KERNEL:LINE, LINE, FILE:LINE or 0xADDRESS."""
        point = self.session.add_breakpoint(text.strip())
        self.out.say(f"breakpoint {point.number}: {point.text}")

    def do_tbreak(self, text: str) -> None:
        """tbreak PLACE: as break, once."""
        point = self.session.add_breakpoint(text.strip(), once=True)
        self.out.say(f"breakpoint {point.number}, once: {point.text}")

    def do_watch(self, text: str) -> None:
        """watch ADDRESS [BYTES]: halt when global memory changes (4 bytes). Slow: looks after every
        instruction."""
        words = text.split()
        address, size = _number(words, 0, None), _number(words, 1, 4)
        if not 0 < size <= _MOST_BYTES:
            raise UsageError(f"expected 1 to {_MOST_BYTES} bytes, got {size}")
        watch = self.session.add_watch(address, size)
        self.out.say(f"watch {watch.number}: {address:#x}, {size} bytes")

    def do_delete(self, text: str) -> None:
        """delete NUMBER: drop a breakpoint or a watch."""
        self.session.delete(_number(text.split(), 0, None))

    # ---- inspection ---------------------------------------------------------------------------

    def _halt(self) -> Halt:
        if self.session.halt is None:
            raise UsageError("no wave is halted: set a breakpoint and `run`")
        return self.session.halt

    def do_info(self, text: str) -> None:
        """info registers [NAME ...] | waves | breakpoints | kernels."""
        words = text.split() or [""]
        match words[0]:
            case "registers" | "r":
                self._registers(words[1:])
            case "waves" | "w":
                self._waves()
            case "breakpoints" | "b":
                for point in self.session.breakpoints.values():
                    self.out.say(f"{point.number}  {point.text}{', once' if point.once else ''}")
                for watch in self.session.watches.values():
                    self.out.say(f"{watch.number}  watch {watch.address:#x}, {watch.size} bytes")
            case "kernels":
                self.out.say("\n".join(sorted(self.session.kernels)) or "none has run")
            case _:
                raise UsageError(
                    f"expected info registers, waves, breakpoints or kernels, got {text!r}"
                )

    def _waves(self) -> None:
        halt = self._halt()
        rows = []
        for wave in halt.wave.waves():
            pc = halt.kernel.where(wave.pc) if wave.pc else ""
            mark = "*" if wave.number == self._wave else ""
            rows.append((mark, wave.number, wave.state, pc, f"{wave.execute:#x}"))
        self.out.table(("", "wave", "state", "at", "exec"), rows)

    def _registers(self, names: list[str]) -> None:
        """Show scalar registers, or the named registers; named vector registers lane by lane."""
        wave = self._halt().wave
        scalars, vectors = wave.names(self._wave)
        if not names:
            rows = [(name, f"{wave.read(name, self._wave):#x}") for name in scalars]
            self.out.table(("register", "value"), [row for row in rows if row[1] != "0x0"])
            self.out.say(f"others are 0; {len(vectors)} vector registers: print NAME")
        for name in names:
            self.do_print(name)

    def do_print(self, text: str) -> None:
        """print[/f] REGISTER | REGISTER[LANE]: show it in hexadecimal, or as floating-point numbers
        of its width."""
        form, _, name = text.rpartition(" ")
        register, value = self._read_register(name)
        show: Callable[[int], str] = hex
        if form.strip() == "/f":
            show = _floats_of(register, self._halt().wave.bits(register))
        if isinstance(value, int):
            self.out.say(f"{name} = {show(value)}")
            return
        self.out.say(f"{register} =")
        for first in range(0, len(value), 8):
            lanes = "  ".join(f"{show(lane):>10}" for lane in value[first : first + 8])
            self.out.say(f"  [{first:>2}] {lanes}")

    def _read_register(self, text: str) -> tuple[str, Any]:
        wave = self._halt().wave
        meant = _REGISTER.fullmatch(text.strip())
        try:
            if meant is None:
                raise KeyError(text)
            value = wave.read(meant["name"], self._wave)
            if meant["lane"] is None:
                return meant["name"], value
            if isinstance(value, int):
                raise KeyError(text)
            return meant["name"], value[int(meant["lane"])]
        except (KeyError, IndexError):
            example = _example(wave)
            raise UsageError(f"expected a register such as {example}, got {text!r}") from None

    def do_set(self, text: str) -> None:
        """set REGISTER = VALUE, set REGISTER[LANE] = VALUE: change a register (all lanes)."""
        wave = self._halt().wave
        name, equals, value = (word.strip() for word in text.partition("="))
        meant = _REGISTER.fullmatch(name)
        try:
            if meant is None or not equals:
                raise KeyError(name)
            lane = None if meant["lane"] is None else int(meant["lane"])
            wave.write(meant["name"], int(value, 0), self._wave, lane)
        except (KeyError, ValueError):
            raise UsageError(f"expected REGISTER = NUMBER, got {text!r}") from None

    def do_x(self, text: str) -> None:
        """x ADDRESS [BYTES]: show global memory (64 bytes); x shared: the group's memory."""
        wave, words = self._halt().wave, text.split()
        if words[:1] == ["shared"]:
            address, data = 0, wave.shared()
        else:
            address, size = _number(words, 0, None), _number(words, 1, 64)
            content = wave.memory(address, min(size, _MOST_BYTES))
            if content is None:
                raise UsageError(f"{address:#x} is not mapped for reading")
            data = content
        for start in range(0, len(data), 16):
            row = data[start : start + 16]
            words_of = [row[n : n + 4][::-1].hex() for n in range(0, len(row), 4)]
            self.out.say(f"{address + start:#x}  {' '.join(words_of)}")

    def do_wave(self, text: str) -> None:
        """wave NUMBER: show the registers of another wave of the group."""
        number = _number(text.split(), 0, None)
        if number not in [wave.number for wave in self._halt().wave.waves()]:
            raise UsageError(f"expected a wave of the group (info waves), got {number}")
        self._wave = number

    def do_where(self, text: str) -> None:
        """where: show the place of the halted wave again."""
        self._say_where(self._halt())

    def do_disassemble(self, text: str) -> None:
        """disassemble [all]: show instructions around the wave's, or the whole kernel."""
        halt = self._halt()
        addresses = sorted(halt.kernel.listing)
        at = addresses.index(halt.wave.pc) if halt.wave.pc in addresses else 0
        shown = addresses if text.strip() == "all" else addresses[max(0, at - _LINES) : at + _LINES]
        for pc in shown:
            mark = "=>" if pc == halt.wave.pc else "  "
            self.out.say(f"{mark} {halt.kernel.where(pc)}  {halt.kernel.listing[pc]}")

    def do_list(self, text: str) -> None:
        """list: show the lines of kernel IR or source that the kernel's code comes from."""
        halt = self._halt()
        here = halt.kernel.row(halt.wave.pc)
        lines = {(row.file, row.line): row.text for row in halt.kernel.rows if row.line}
        if not lines:
            raise UsageError(f"expected line tables, {halt.kernel.name} has none")
        for (file, line), statement in sorted(lines.items()):
            mark = "=>" if here is not None and (here.file, here.line) == (file, line) else "  "
            self.out.say(f"{mark} {file}:{line}  {statement}".rstrip())

    # ---- completion ---------------------------------------------------------------------------

    def complete_break(self, text: str, line: str, start: int, end: int) -> list[str]:
        """Complete names of kernels."""
        return [name for name in sorted(self.session.kernels) if name.startswith(text)]

    complete_tbreak = complete_break

    def complete_info(self, text: str, line: str, start: int, end: int) -> list[str]:
        """Complete the topics of `info`."""
        words = ("registers", "waves", "breakpoints", "kernels")
        return [word for word in words if word.startswith(text)]

    def complete_print(self, text: str, line: str, start: int, end: int) -> list[str]:
        """Complete names of registers."""
        if self.session.halt is None:
            return []
        names = self.session.halt.wave.names(self._wave)
        return [name for some in names for name in some if name.startswith(text)]

    complete_set = complete_print


def _example(wave: Any) -> str:
    scalars, vectors = wave.names(wave.wave)
    return f"{[*scalars, *vectors][0]} or {vectors[0]}[3]" if vectors else str(scalars[:1])


def _number(words: list[str], place: int, default: int | None) -> int:
    try:
        return int(words[place], 0)
    except IndexError:
        if default is None:
            raise UsageError("expected a number, got nothing") from None
        return default
    except ValueError:
        raise UsageError(f"expected a number, got {words[place]!r}") from None


def _floats_of(name: str, bits: int) -> Callable[[int], str]:
    form = {16: ("<e", "<H", 4), 32: ("<f", "<I", 7), 64: ("<d", "<Q", 16)}.get(bits)
    if form is None:
        raise UsageError(f"expected a register of 16, 32 or 64 bits, {name} has {bits}")
    real, integer, digits = form
    return lambda value: f"{struct.unpack(real, struct.pack(integer, value))[0]:.{digits}g}"
