"""How long to look for a message before sleeping until it comes.

To sleep and be woken takes two processes on two cores 10 to 20 us each for every message, more than
the message itself; to look again and again takes none of that while it has success, and a core's
time while it has not. So looking is bounded, is left alone for a while where it was
in vain, and is never done where nobody could answer meanwhile.

We never give up the core between two looks: among busy processes sched_yield(2) hands it away for
milliseconds.
"""

from __future__ import annotations

import functools
import os
import select
import socket
import struct
import time
from collections.abc import Callable

# TIMEOUT: what a peer that is awake takes for a message, a few times over; our choice.
LIMIT_S = 50e-6
# A look that succeeds saves about a quarter of what one in vain costs.
_SUCCESS, _FAILURE, _FULL = 1, 4, 16
LONGEST_REST = 256  # messages in a row that are slept for
_PEER = struct.Struct("=iII")  # asm-generic/socket.h, SO_PEERCRED: process, user, group


class Attention:
    """Decides for one receiver of messages, in one thread, whether to look before it sleeps."""

    def __init__(
        self, ready: Callable[[], object], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`ready` says without waiting whether something came."""
        self._ready = ready
        self._clock = clock
        self._credit = _FULL
        self._rest = 1
        self._resting = 0

    def look(self) -> None:
        """Return once something came, or when it is time to sleep until it does."""
        if self._resting:
            self._resting -= 1
            return
        ready, clock = self._ready, self._clock
        if ready():  # it came before we looked, so that nothing was gained
            return
        end = clock() + LIMIT_S
        while clock() < end:
            if ready():
                self._succeeded()
                return
        self._failed()

    def _succeeded(self) -> None:
        if self._credit < _FULL:
            self._credit += _SUCCESS
            if self._credit == _FULL:
                self._rest = 1

    def _failed(self) -> None:
        self._credit -= _FAILURE
        if self._credit <= 0:
            self._credit = _SUCCESS  # of one look, after the rest
            self._resting = self._rest
            self._rest = min(2 * self._rest, LONGEST_REST)


def sleep_at_once() -> None:
    """In place of `Attention.look`, where looking cannot pay."""


def attention_to(connection: socket.socket) -> Callable[[], None]:
    """What to call before a blocking receive on `connection`: nothing but a look, or none.

    None where this process has one core, and none where the peer is a thread of it: that one needs
    the interpreter which the look would hold.
    """
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    peer, _, _ = _PEER.unpack(credentials)
    if len(os.sched_getaffinity(0)) == 1 or peer == os.getpid():
        return sleep_at_once
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return Attention(functools.partial(poll.poll, 0)).look
