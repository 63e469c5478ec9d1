"""The resource manager's interface of one driver branch: numbers, and the block each call takes.

Source: the headers of open-gpu-kernel-modules, one release for each branch (docs/nv-abi.md). The
tables contain branch 570 in full and the differences of every other branch; they are read on first
use.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.registers.constants import Constants
from ugpu.hcq.registers.layout import Layouts
from ugpu.hcq.registers.malformed import lines_of, rows_of

BASE = "570"
_READ_WRITE = 3
_MAGIC = ord("F")


@dataclass(frozen=True, slots=True)
class Ioctl:
    """One call of a node: `node` is "rm" (nvidiactl, nvidiaN) or "uvm"; `number` as in headers."""

    name: str
    number: int
    struct: str
    node: str


@dataclass(frozen=True, slots=True)
class ClassRule:
    """Requirements of the resource manager for an object: its block, and the classes of its
    possible parents.

    `how` is REQUIRED, OPTIONAL or NONE. `internal` and `parents` are the names of the resource
    manager's own classes; parents may also be ROOT_OBJECT or ANY_PARENT.
    """

    name: str
    number: int
    struct: str | None
    how: str
    internal: str
    parents: tuple[str, ...]


def _lines(text: str, words: int) -> dict[str, str]:
    if words == 1:
        return rows_of(text)
    return {" ".join(line.split(" ", words)[:words]): line for line in lines_of(text)}


def merge(base: str, change: str, words: int = 1) -> str:
    """Replace the lines of `base` by those of `change`; `KEY -` removes a line.

    A line's key is its first `words` words.
    """
    rows = _lines(base, words)
    for key, line in _lines(change, words).items():
        if line == f"{key} -":
            rows.pop(key, None)
        else:
            rows[key] = line
    return "\n".join(rows.values())


class Abi:
    """One branch's interface. Safe to share between threads; keep it as long as the device.

    `exact` is False if the tables of a nearby branch are used for the requested one.
    """

    def __init__(self, folder: Path, version: str, branch: str, *, exact: bool) -> None:
        self.version = version
        self.branch = branch
        self.exact = exact
        self._folder = folder

    def _text(self, kind: str, words: int = 1) -> str:
        base = (self._folder / f"rm_{BASE}.{kind}.txt").read_text(encoding="ascii")
        if self.branch == BASE:
            return base
        change = (self._folder / f"rm_{self.branch}.{kind}.txt").read_text(encoding="ascii")
        return merge(base, change, words)

    @cached_property
    def structs(self) -> Layouts:
        """Every parameter block, with the offsets of this branch."""
        return Layouts(self._text("structs"), f"NVIDIA {self.branch}")

    @cached_property
    def constants(self) -> Constants:
        """Escapes, controls, classes, flags (fields of words), UVM numbers, Xids, status codes."""
        return Constants(self._text("constants"), f"NVIDIA {self.branch}")

    @cached_property
    def _calls(self) -> tuple[dict[int, ClassRule], dict[int, str | None], dict[str, Ioctl]]:
        classes: dict[int, ClassRule] = {}
        controls: dict[int, str | None] = {}
        ioctls: dict[str, Ioctl] = {}
        for line in self._text("calls", words=2).splitlines():
            kind, _, rest = line.partition(" ")
            if kind == "class":
                name, text, block, how, internal, parents = rest.split(" ")
                number = int(text, 16)
                struct = None if block == "-" else block
                if how != "-" or number not in classes:
                    above = () if parents == "-" else tuple(parents.split(","))
                    rule = ClassRule(name, number, struct, how, internal, above)
                    classes[number] = rule
            elif kind == "control":
                text, block = rest.split(" ")
                controls[int(text, 16)] = None if block == "-" else block
            elif kind == "ioctl":
                name, text, block, node = rest.split(" ")
                ioctls[name] = Ioctl(name, int(text, 16), block, node)
        return classes, controls, ioctls

    @property
    def classes(self) -> dict[int, ClassRule]:
        """Every class of which a program may allocate an object, by number; not to be changed."""
        return self._calls[0]

    @property
    def controls(self) -> dict[int, str | None]:
        """Every control the resource manager dispatches -> its block; not to be changed."""
        return self._calls[1]

    @property
    def ioctls(self) -> dict[str, Ioctl]:
        """Every ioctl by name; not to be changed."""
        return self._calls[2]

    def parameters_of_class(self, class_id: int) -> str | None:
        """The block that an object of this class is allocated with; None if none or not known."""
        rule = self.classes.get(class_id)
        return rule.struct if rule else None

    def parameters_of_control(self, command: int) -> str | None:
        """The block that a control takes; None if none or not known."""
        return self.controls.get(command)

    @cached_property
    def _by_number(self) -> dict[tuple[str, int], Ioctl]:
        found: dict[tuple[str, int], Ioctl] = {}
        for ioctl in self.ioctls.values():
            found.setdefault((ioctl.node, ioctl.number), ioctl)
        return found

    def ioctl_of(self, number: int) -> Ioctl | None:
        """Return the ioctl with a request number; None if not known.

        Calls of nvidiactl and nvidiaN carry 'F' and the size of their block; calls of UVM are bare
        numbers. RM_ALLOC takes one of two blocks, distinguished by size.
        """
        if (number >> 8) & 0xFF != _MAGIC or number >> 30 != _READ_WRITE:
            return self._by_number.get(("uvm", number))
        found = self._by_number.get(("rm", number & 0xFF))
        size = (number >> 16) & 0x3FFF
        older = "NVOS21_PARAMETERS"
        if found and found.name == "NV_ESC_RM_ALLOC" and size == self.structs[older].size:
            return Ioctl(found.name, found.number, older, found.node)
        return found

    def request(self, name: str) -> int:
        """The request number to call an ioctl with; BadArgument for an unknown name."""
        ioctl = self.ioctls.get(name)
        if ioctl is None:
            raise BadArgument(f"branch {self.branch} has no ioctl {name}")
        if ioctl.node == "uvm":
            return ioctl.number
        size = self.structs[ioctl.struct].size
        return _READ_WRITE << 30 | size << 16 | _MAGIC << 8 | ioctl.number

    def control_name(self, command: int) -> str | None:
        """The header's name of a control, or None."""
        return self._control_names.get(command)

    @cached_property
    def _control_names(self) -> dict[int, str]:
        found: dict[int, str] = {}
        controls = self.controls
        for name, number in self.constants.values().items():
            if "_CTRL_CMD_" in name and number in controls:
                found.setdefault(number, name)
        return found

    def __repr__(self) -> str:
        return f"<Abi {self.branch} for {self.version}{'' if self.exact else ', not exact'}>"
