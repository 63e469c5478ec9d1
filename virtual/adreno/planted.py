"""Faults planted by tests, and those that have occurred.

`VirtualMachine.inject` plants one of `Planted`; `VirtualMachine.refuse` makes a call fail with an
errno. Either takes effect at the next `count` operations that it concerns.
"""

from __future__ import annotations

from ugpu.virtual.faults import Plan, Titled, named


class Planted(Titled):
    """Fault that can be planted."""

    HANG = "hang", "the next submission hangs until the kernel driver resets the GPU"
    OPCODE = "opcode error", "the command processor meets an opcode that does not exist"
    PARITY = "packet header parity error", "the command processor meets a damaged header"
    PROTECTED = "protected register", "the next submission writes a protected register"
    SHADER = "illegal instruction", "the next dispatch executes a word that is not an instruction"
    FETCH = "instruction fetch fault", "the next dispatch fetches code from an unmapped page"
    EXTERNAL = "external abort", "the bus refuses the next dispatch's first load"
    STUCK = "timestamps stuck", "the next submission is taken and never begins"
    LOST_SIGNAL = "lost signal", "the next submission's last CP_MEM_WRITE does not reach memory"
    UNKNOWN_RESET = "reset of unknown cause", "GPU_RESET_STAT reports UNKNOWN_CONTEXT_RESET"
    STRANGE_CHIP = "unknown GPU id", "the next identification reports a GPU of generation 8"
    OLD_FAULTS = "no fault reports", "the kernel driver has no GET_FAULT_REPORT; at once"
    VANISHED = "device node vanished", "all calls fail with ENODEV, open with ENOENT; at once"


AT_ONCE = (Planted.OLD_FAULTS, Planted.VANISHED)


class FaultPlan(Plan[Planted | str]):
    """Planned faults, and failures of calls by their names. standing: faults of AT_ONCE that are
    active."""

    def __init__(self) -> None:
        super().__init__()
        self._codes: dict[str, int] = {}  # by call: errno
        self.standing: set[Planted] = set()

    def plant_named(self, fault: Planted | str, count: int) -> None:
        """Plan a fault; BadArgument for an unknown one."""
        kind = named(Planted, fault)
        if kind in AT_ONCE:
            self.standing.add(kind)
            self.struck.append(kind)
        else:
            self.plant(kind, count)

    def refuse(self, call: str, code: int, count: int) -> None:
        """Plan a failure of the next `count` calls with a name."""
        self._codes[call] = code
        self._planted[call, None] = count

    def refusal(self, call: str) -> int:
        """Return the errno with which a call fails now; 0 for none."""
        return self._codes[call] if self.take(call) else 0

    def clear(self) -> None:
        """Remove all planned faults."""
        super().clear()
        self.standing.clear()
