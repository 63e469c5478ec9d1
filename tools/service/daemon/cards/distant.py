"""A device of ugpud in a process of its own, with its driver: what `Owned` does, by calls to it.

A kernel, an object or a message that ends the process ends the leases of this card, with the reason
as their error; then the card is recovered, which starts the process again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import Closed, UgpuError
from ugpu.hcq.remote.channel import Disconnected
from ugpu.hcq.remote.replies import checked, facts, number, text
from ugpu.hcq.remote.request import Grant
from ugpu.hcq.state.ladder import Level
from ugpu.hcq.state.target import TargetSpec
from ugpu.hcq.state.telemetry import loads
from ugpu.tools.service.daemon.cards.owned import Owned
from ugpu.tools.service.daemon.cards.process import CardProcess
from ugpu.tools.service.daemon.cards.relay import Relay
from ugpu.tools.service.daemon.clients.handout import Place
from ugpu.tools.service.daemon.clients.service import Answers, Lent, Terms
from ugpu.tools.service.daemon.config import DeviceSettings, Settings


def own(
    settings: DeviceSettings,
    name: str,
    opener: Callable[..., Device],
    ugpud: Settings,
    on_lost: Callable[[Owned, UgpuError], None],
) -> Owned:
    """Return a device that is not open yet, in the process that its settings say. Devices of an
    opener other than hcq.open exist in this process."""
    if settings.apart and opener is hcq.open:
        return DistantOwned(settings, name, ugpud, on_lost)
    return Owned(settings, name, opener)


class DistantOwned(Owned):
    """A device in another process; see Owned. `device` is None. From any thread: reading state,
    which each call renews, waits for nothing."""

    def __init__(
        self,
        settings: DeviceSettings,
        name: str,
        ugpud: Settings,
        on_lost: Callable[[Owned, UgpuError], None],
    ) -> None:
        """ugpud: the daemon's settings. on_lost: called in a thread of its own when the process of
        the open device has ended."""
        super().__init__(settings, name)
        self._ugpud = ugpud
        self._on_lost = on_lost
        self._process: CardProcess | None = None
        self._grant: Grant | None = None
        self._state: dict[str, bool] = {}

    # ---- life ----------------------------------------------------------------------------------

    def boot(self) -> None:
        """See Owned. The process is a new one, and so is the device's memory."""
        self.close()
        process = CardProcess(self.settings, self.name, self._ugpud, self._renew, self._ended)
        try:
            self._grant = Grant.from_map(process.call("boot", self.settings.host_memory))
            self._process = process
            if not process.lives:
                raise process.reason()
        except BaseException:
            self._process = None
            process.close()
            raise
        self.card.unclean = ""

    def close(self) -> None:
        """See Owned."""
        process, self._process = self._process, None
        self._state = {}
        if process is not None:
            process.close()

    @property
    def is_open(self) -> bool:
        process = self._process
        return process is not None and process.lives and self._state.get("is_open", False)

    @property
    def pid(self) -> int:
        """The process; Closed if there is none."""
        return self._living().worker.pid

    # ---- leases --------------------------------------------------------------------------------

    def hold(self, terms: Terms, answers: Answers) -> Lent:
        """See Owned."""
        process = self._living()
        try:
            return Relay(process, terms, answers)
        except Disconnected:
            raise process.reason() from None

    def end(self, lent: Lent, drain_s: float) -> str:
        """See Owned."""
        assert isinstance(lent, Relay)
        return lent.end(drain_s)

    def interrupt(self, lent: Lent, reason: str) -> None:
        """See Owned."""
        assert isinstance(lent, Relay)
        lent.interrupt(reason)

    def hand_out(self, parent: Path, name: str, user: int) -> Place:
        """See Owned."""
        place = self._call("hand_out", str(parent), name, user)
        with checked("hand_out"):
            path, firmware = map(text, place)
        return Place(Path(path), Path(firmware))

    def take_back(self) -> None:
        """See Owned."""
        self._call("take_back")

    def check(self, repair: bool) -> None:
        """See Owned."""
        self._call("check", int(repair))

    def works(self) -> bool:
        """See Owned."""
        return self._process is not None and bool(self._call("works"))

    # ---- rest ----------------------------------------------------------------------------------

    @property
    def can_rest(self) -> bool:
        return self.is_open and self._state["can_rest"]

    @property
    def resting(self) -> bool:
        return self.is_open and self._state["resting"]

    def rest(self) -> bool:
        """See Owned."""
        return self._process is not None and bool(self._call("rest"))

    def wake(self) -> None:
        """See Owned."""
        if self.resting:
            self._call("wake")

    # ---- facts ---------------------------------------------------------------------------------

    def target(self) -> tuple[TargetSpec, float]:
        """See Owned."""
        if self._grant is None:
            raise Closed(f"{self.name} is not open")
        return self._grant.target, self._grant.clock_hertz

    @property
    def warm(self) -> bool:
        return self._state.get("warm", False)

    def info(self) -> dict[str, object]:
        """See Owned."""
        reply = self._call("info")
        with checked("info"):
            return facts(reply)

    def sensors(self) -> list[list[object]]:
        """See Owned."""
        reply = self._call("sensors")
        with checked("sensors"):
            return [list(row) for row in reply]

    def firmware_states(self) -> object:
        """See Owned."""
        reply = self._call("firmware_states")
        with checked("firmware_states"):
            return json.loads(reply)

    def telemetry(self) -> bytes:
        """See Owned."""
        if not self.is_open:
            raise Closed(f"{self.name} is not open")
        reply = self._call("telemetry")
        with checked("telemetry"):
            content = bytes(reply)
            loads(content)
        return content

    # ---- recovery: see Patient -----------------------------------------------------------------

    def reset(self, to: Level | None) -> Level:
        """See Patient."""
        reply = self._call("reset", None if to is None else int(to))
        with checked("reset"):
            return Level(number(reply))

    def harsher(self, than: Level) -> list[Level]:
        """See Patient."""
        reply = self._call("harsher", int(than))
        with checked("harsher"):
            return [Level(number(level)) for level in reply]

    def prove(self) -> None:
        """See Patient."""
        self._call("prove")
        self.card.unclean = ""

    # ---- the process ---------------------------------------------------------------------------

    def _living(self) -> CardProcess:
        if self._process is None:
            raise Closed(f"{self.name} is not open")
        return self._process

    def _call(self, operation: str, *arguments: object) -> Any:  # Any: callers check it
        return self._living().call(operation, *arguments)

    def _renew(self, state: dict[str, object]) -> None:
        """Keep the state in a reply (host.Host)."""
        with checked("state"):
            labels = state["labels"]
            if not isinstance(labels, list):
                raise TypeError("labels must be a list")
            self.card.labels = tuple(map(text, labels))
            self.card.memory = number(state["memory"])
            self.card.transport = bool(state["transport"])
            self.card.shares = number(state["shares"])
            self.card.alone = text(state["alone"])
            self.serial = text(state["serial"])
            self._state = {
                name: bool(state[name]) for name in ("is_open", "can_rest", "resting", "warm")
            }

    def _ended(self, error: UgpuError) -> None:
        if self._process is not None:
            self._on_lost(self, error)
