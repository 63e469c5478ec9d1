"""The power rung: a configured command that cycles a card's supply, such as a switched outlet's.

The card is removed from the bus before the command and found again after it, since its port detects
the removal.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess

from ugpu.hcq.errors import BadArgument, HostError, NotSupported
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.state.config import config
from ugpu.hcq.state.ladder import Level
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.rungs import RemoveRescan

COMMAND_LIMIT_S = 120.0  # TIMEOUT: of the command; supplies may need to discharge; our choice


class PowerAction(RemoveRescan):
    """Run the command of UGPU_POWER_COMMAND while the card is off the bus."""

    name = "power action"
    level = Level.POWER
    cost = "the card loses all of its state and memory, and whatever else the command switches off"

    def __init__(
        self, function: PciFunction, clock: Clock | None = None, command: str | None = None
    ) -> None:
        """command: default: the settings'; "{device}" in it stands for the card's name."""
        super().__init__(function, clock)
        self._text = config().power_command if command is None else command
        self._name = f"pci:{function.address}"

    def check(self) -> None:
        """See Rung."""
        words = self._command()
        if not words:
            raise NotSupported(
                "no power action is configured",
                remedy="set UGPU_POWER_COMMAND to a command that cycles the card's power",
            )
        if shutil.which(words[0]) is None:
            raise NotSupported(f"UGPU_POWER_COMMAND: command {words[0]!r} not found")
        super().check()

    def _command(self) -> list[str]:
        try:
            words = shlex.split(self._text)
        except ValueError as error:
            raise BadArgument(f"UGPU_POWER_COMMAND: {error}", command=self._text) from None
        return [word.replace("{device}", self._name) for word in words]

    def _while_gone(self) -> None:
        words = self._command()
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HostError(f"the power action failed: {error}", command=words[0]) from error
        if done.returncode:
            raise HostError(
                "the power action failed",
                command=words[0],
                status=done.returncode,
                said=(done.stderr or done.stdout).strip()[-200:],
            )
