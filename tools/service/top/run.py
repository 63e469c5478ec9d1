"""`ugpu top`: the screen, or a single listing."""

from __future__ import annotations

import importlib

from ugpu.hcq.errors import MissingDependency, UsageError
from ugpu.hcq.state.config import config
from ugpu.tools.base.console import Output
from ugpu.tools.inspect.smi import gpus
from ugpu.tools.service.top.fleet import Fleet
from ugpu.tools.service.top.leased import LeasedFleet
from ugpu.tools.service.top.table import print_once


def run(
    out: Output, *, once: bool = False, interval_s: float = 1.0, daemon: str | None = None
) -> int:
    """Show the devices that are open in processes of this user. once: print them and return; --json
    and a stdout that is not a terminal imply it. daemon: the address of a ugpud whose devices are
    shown instead; "": the usual place. MissingDependency without Textual."""
    if not 0.25 <= interval_s <= 60:
        raise UsageError(f"--interval must be 0.25 to 60 seconds, got {interval_s:g}")
    watched = Fleet(config().observe_folder, gpus()) if daemon is None else LeasedFleet(daemon)
    with watched as fleet:
        if once or out.as_json or not out.console.is_terminal:
            return print_once(fleet.once(), out)
        try:
            screen = importlib.import_module(".screen", __package__)
        except ImportError:
            raise MissingDependency(
                "Textual is not installed (`ugpu top --once` works without it)",
                install="pip install 'ugpu[top]'",
            ) from None
        fleet.interval_s = interval_s
        screen.Top(fleet).run()
    return 0
