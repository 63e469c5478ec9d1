"""`ugpu shell DEVICE`: IPython with variables for the device, its chip and its registers."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np

import ugpu
from ugpu import hcq
from ugpu.hcq.errors import MissingDependency, UgpuError
from ugpu.hcq.find import offline as window
from ugpu.hcq.registers.fields import RegisterBlock
from ugpu.hcq.state.config import config
from ugpu.tools.base.console import Output
from ugpu.tools.debug.steps import Boot

_HELP = {
    "gpu": "the device, the default of tensors: gpu.alloc, gpu.compile, gpu.queue ...",
    "boot": "boot.next(), .until('PSP ring'), .again(), .watch('mp0.*C2PMSG_81'), .finish()",
    "chip": "the driver's chip; its register blocks are variables too:",
    "states": "states(): what state each firmware and unit is in",
    "ugpu, hcq, np": "as in a program",
}


def _names(chip: object) -> dict[str, object]:
    """Return the variables that a chip adds."""
    blocks = window.blocks_of(chip)
    return {"chip": chip, **blocks} if blocks else {}


def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="ugpu-shell-")


class Session:
    """The variables of a shell; `boot` adds those that become known during a boot."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self.variables: dict[str, Any] = {"ugpu": ugpu, "hcq": hcq, "np": np}
        self.variables["states"] = self.states

    def states(self) -> None:
        """Show the state of each firmware and unit."""
        chip: Any = self.variables.get("chip")
        name = str(getattr(getattr(chip, "facts", None), "name", ""))
        if not name:
            self.out.say("this device shows no registers")
            return
        states: Any = window.module_of_chip(name).look(chip, "states")
        self.out.table(("unit", "state", "", "meaning"),
                       [(state["unit"], state["name"], "" if state["ok"] else "!", state["meaning"])
                        for state in states])  # fmt: skip

    @contextmanager
    def opened(self, device: str, how: str) -> Iterator[None]:
        """Open the device. how: "boot" brings it up; "steps" stops before the first stage; "look"
        leaves it as it is."""
        if how == "look":
            with window.open_window(device) as chip:
                self.variables |= _names(chip)
                yield
        elif how == "steps":
            with contextlib.closing(_SteppedBoot(device, self)) as boot:
                self.variables |= {"boot": boot, "gpu": _Booting(boot)}
                try:
                    yield
                finally:
                    ugpu.set_default_device(None)
        else:
            with hcq.open(device) as gpu:
                self.variables |= {"gpu": gpu, **_names(getattr(gpu, "chip", None))}
                yield

    def banner(self) -> str:
        """Return the shell's start text."""
        lines = [f"  {name:<16}{text}" for name, text in _HELP.items()
                 if name.partition(",")[0] in self.variables]  # fmt: skip
        blocks = [name for name, value in self.variables.items() if _is_block(value)]
        if blocks:
            lines.append(f"  {', '.join(blocks)}: gc.GRBM_STATUS.read(), .write(FIELD=1)")
        return "\n".join(lines)


def _is_block(value: object) -> bool:
    return isinstance(value, RegisterBlock)


class _Booting:
    """Placeholder of the device until its boot is over: gpu.boot, gpu.chip, gpu.gc ..."""

    def __init__(self, boot: Boot) -> None:
        self.boot = boot

    def __getattr__(self, name: str) -> object:
        member = _names(self.boot.chip).get(name)
        if member is None:
            raise AttributeError(f"the device is not booted ({self.boot!r}), so it has no {name!r}")
        return member

    def __dir__(self) -> list[str]:
        return ["boot", *_names(self.boot.chip)]

    def __repr__(self) -> str:
        return f"<device in its boot: {self.boot!r}>"


class _SteppedBoot(Boot):
    """A boot that also adds its findings to the session's variables."""

    def __init__(self, device: str, session: Session) -> None:
        super().__init__(device, session.out.say)
        self._session = session

    def _go(self, target: str | None) -> None:
        try:
            super()._go(target)
        finally:
            self._session.variables |= _names(self.chip)
            if self.device is not None:
                self._session.variables["gpu"] = self.device
                ugpu.set_default_device(self.device)


def run(device: str, out: Output, *, how: str = "boot", commands: Sequence[str] = ()) -> int:
    """Open the device and give the terminal to IPython, or run `commands` and end: exit code 1 if
    one raises. MissingDependency if IPython is not installed."""
    session = Session(out)
    try:
        embed = importlib.import_module("IPython.terminal.embed")
        settings = importlib.import_module("traitlets.config").Config()
    except ImportError:
        raise MissingDependency(
            "IPython is not installed", install="pip install 'ugpu[shell]'"
        ) from None
    crashes = config().crash_folder
    keep = crashes.parent if crashes is not None and not commands else None
    settings.HistoryManager.enabled = keep is not None
    settings.TerminalInteractiveShell.confirm_exit = False
    with contextlib.ExitStack() as stack:
        # History and settings of IPython are stored beside the bundles; without that folder, not at
        # all.
        folder = str(keep / "shell") if keep is not None else stack.enter_context(_temporary())
        os.makedirs(folder, mode=0o700, exist_ok=True)
        stack.enter_context(session.opened(device, how))
        shell = embed.InteractiveShellEmbed(
            config=settings, user_ns=session.variables, ipython_dir=folder,
            banner1=f"{device}\n{session.banner()}\n",
        )  # fmt: skip
        session.variables = shell.user_ns
        shell.set_custom_exc((UgpuError,), _show_error)
        if not commands:
            shell()
            return 0
        for command in commands:
            done = shell.run_cell(command)
            if not done.success:
                error = done.error_in_exec or done.error_before_exec
                return 2 if isinstance(error, SyntaxError) else 1
    return 0


def _show_error(
    shell: Any, kind: type[UgpuError], error: UgpuError, trace: TracebackType, tb_offset: int = 0
) -> list[str]:
    """Print one of our errors as the last line of its traceback: it states the problem, and the
    many frames of this package do not. `shell`: IPython's, which is untyped."""
    line = f"{kind.__name__}: {error}"
    print(line, file=sys.stderr)
    return [line]
