"""Faults planted by tests, and those that have occurred.

`VirtualMachine.inject` plants one of `Planted`; `VirtualMachine.refuse` makes a call fail with an
errno. Either takes effect at the next `count` operations that it concerns.
"""

from __future__ import annotations

import enum
from collections import Counter

from ugpu.hcq.errors import BadArgument


class Planted(enum.Enum):
    """Fault that can be planted. title: its name in documents. effect: its description."""

    def __init__(self, title: str, effect: str) -> None:
        self.title = title
        self.effect = effect

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


class Plan:
    """Planned faults. All callers hold the machine's lock."""

    def __init__(self) -> None:
        self._planted: Counter[Planted] = Counter()
        self._refusals: dict[str, tuple[int, int]] = {}  # call: errno, how often
        self.standing: set[Planted] = set()  # faults of AT_ONCE that are active
        self.struck: list[Planted | str] = []  # in order of occurrence

    def plant(self, fault: Planted | str, count: int) -> None:
        """Plan a fault; BadArgument for an unknown one."""
        try:
            found = fault if isinstance(fault, Planted) else Planted[fault.upper()]
        except KeyError:
            known = ", ".join(entry.name for entry in Planted)
            raise BadArgument(f"fault must be one of {known}, got {fault!r}") from None
        if found in AT_ONCE:
            self.standing.add(found)
            self.struck.append(found)
        else:
            self._planted[found] += count

    def refuse(self, call: str, code: int, count: int) -> None:
        """Plan a failure of the next `count` calls with a name."""
        self._refusals[call] = code, count

    def take(self, fault: Planted) -> bool:
        """Return whether a fault occurs now, and remove it from the plan if so."""
        if not self._planted[fault]:
            return False
        self._planted[fault] -= 1
        self.struck.append(fault)
        return True

    def refusal(self, call: str) -> int:
        """Return the errno with which a call fails now; 0 for none."""
        code, left = self._refusals.get(call, (0, 0))
        if left <= 1:
            self._refusals.pop(call, None)
        else:
            self._refusals[call] = code, left - 1
        if code:
            self.struck.append(call)
        return code

    def clear(self) -> None:
        """Remove all planned faults."""
        self._planted.clear()
        self._refusals.clear()
        self.standing.clear()
