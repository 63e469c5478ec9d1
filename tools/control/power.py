"""`ugpu power`: show a device's power limit, or set it until the card is reset."""

from __future__ import annotations

import re

from ugpu import hcq
from ugpu.hcq.errors import BadArgument, NotSupported
from ugpu.hcq.state.checks import watts
from ugpu.hcq.state.telemetry import PowerLimit
from ugpu.tools.base.console import Output

USUAL = "default"  # as a limit: the board's own
_TEXT = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) ?[wW]?")


def run(name: str, out: Output, *, limit: str | None = None) -> int:
    """Show the limit, after setting it if `limit` is given: watts, or USUAL."""
    parsed = None if limit in (None, USUAL) else parse_watts(str(limit))
    with hcq.open(name) as device:
        driver = device.driver
        if limit is not None:
            new = driver.power_limit().usual if parsed is None else parsed
            if new is None:
                raise NotSupported(f"{name} does not report the board's own power limit")
            driver.set_power_limit(new, keep=True)
        shown = driver.power_limit()
    out.say(f"{name}: {_words(shown)}")
    if limit is not None and name.startswith("virtual:"):
        out.say("a virtual card ends with this program, and its limit with it")
    out.result({"device": name, **shown._asdict()})
    return 0


def parse_watts(text: str) -> float:
    """Return the watts of text such as "100W"; BadArgument for anything else."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise BadArgument(f"expected watts such as 100W, got {text[:40]!r}")
    return watts("the power limit", float(match[1]))


def _words(limit: PowerLimit) -> str:
    if limit.least is None or limit.most is None:
        return f"at most {limit.watts:g} W"
    usual = "" if limit.usual is None else f", {limit.usual:g} W by default"
    return f"at most {limit.watts:g} W; the board allows {limit.least:g} to {limit.most:g} W{usual}"
