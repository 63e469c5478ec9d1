"""An operator of a ugpud that dies at random: tokens and quarantines that were acknowledged hold.

Operators are processes. Each creates and revokes tokens, as `ugpud token` does; the first also
quarantines a spare card and has it recovered. What an operator reports before and after each step
decides afterwards what must hold: the state after the last step that returned, or after the one
under way when the operator or the daemon was killed.
"""

from __future__ import annotations

import itertools
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.waiting import until
from ugpu.hcq.errors import AccessDenied, UgpuError
from ugpu.hcq.remote.address import Address
from ugpu.hcq.remote.connection import Connection
from ugpu.tools.service.daemon.clients.tokens import Tokens

SPARE = "cpu"
MOST_TOKENS = 50
PAUSE_S = 0.05  # between steps, so that a round has dozens of tokens and not thousands


@dataclass
class Facts:
    """What must hold. tokens: by name, the token and whether it is valid; None: either. reason: of
    the spare card's quarantine; empty: none. unsure: the quarantine's state before or after the
    step under way."""

    tokens: dict[str, tuple[str, bool | None]] = field(default_factory=dict)
    reason: str = ""
    unsure: tuple[str, ...] = ()
    checked: int = 0

    def take(self, told: str) -> None:
        """Read what an operator reported."""
        for line in told.splitlines():
            word, _, rest = line.partition(" ")
            name, _, token = rest.partition(" ")
            if word == "created":
                self.tokens[name] = token, True
            elif word == "revoke":
                self.tokens[name] = self.tokens[name][0], None
            elif word == "revoked":
                self.tokens[name] = self.tokens[name][0], False
            elif word in ("quarantine", "recover"):
                self.unsure = self.reason, rest
            elif word in ("quarantined", "recovered"):
                self.reason, self.unsure = rest, ()

    def check(self, tokens: Tokens, socket: str) -> None:
        """AssertionError where one of the facts does not hold; forgets what is decided for good."""
        for name, (token, valid) in list(self.tokens.items()):
            try:
                found = tokens.rights(token, 0.0).name == name
            except AccessDenied:
                found = False
            assert valid is None or found is valid, f"token {name}: {found}, not {valid}"
            self.checked += valid is not None
            self.tokens[name] = token, found
            if not found:
                del self.tokens[name]
        if len(self.tokens) > MOST_TOKENS:  # those of many rounds, else the file grows for ever
            for name in self.tokens:
                tokens.revoke(name)
            self.tokens = {name: (token, False) for name, (token, _) in self.tokens.items()}
        spare = _settled(socket)
        reasons = self.unsure or (self.reason,)
        told = spare["reason"] if spare["state"] == "quarantined" else ""
        right = [one for one in reasons if told.startswith(one) and bool(told) is bool(one)]
        assert right, f"{SPARE} is {spare['state']} ({told!r}), not one of {reasons}"
        self.checked += not self.unsure
        self.reason = right[0]  # a request of a dead operator may still be under way


def _settled(socket: str) -> dict[str, Any]:
    """The spare card when no recovery is under way: a quarantine that was ordered during one shows
    at its end."""
    found: list[dict[str, Any]] = []

    def ended() -> bool:
        with Connection(Address(socket)) as connection:
            rows = connection.call("devices").arguments[0]
        found[:] = [row for row in rows if row["name"] == SPARE]
        return found[0]["state"] not in ("recovering", "booting")

    until(ended, f"the end of the recovery of {SPARE}")
    return found[0]


def operate(
    socket: str, state: Path, name: str, facts: Facts | None, tell: Callable[[str], object]
) -> None:
    """Work until SIGTERM, or until the daemon is gone. facts: of the spare card, for the one
    operator who orders its quarantines; None: no such orders."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    tokens = Tokens(state / "tokens.json")
    reason = "" if facts is None else facts.reason
    for number in itertools.count():
        if told:
            return
        one = f"{name}-{number}"
        tell(f"create {one}")
        token = tokens.create(one, "use", "*", 0.0)
        tell(f"created {one} {token}")
        if facts is not None:
            try:
                with Connection(Address(socket)) as connection:
                    if reason:
                        tell("recover ")
                        connection.call("recover", SPARE)
                        reason = ""
                        tell("recovered ")
                    else:
                        reason = f"{one} ordered it"
                        tell(f"quarantine {reason}")
                        connection.call("quarantine", SPARE, reason)
                        tell(f"quarantined {reason}")
            except (UgpuError, OSError) as error:
                tell(f"lost {type(error).__name__}")
                return
        if number % 2:
            tell(f"revoke {one}")
            tokens.revoke(one)
            tell(f"revoked {one}")
        select.select([], [], [], PAUSE_S)
