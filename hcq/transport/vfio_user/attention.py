"""Decide how long to poll for a message before sleeping.

With two processes on two cores, sleeping and waking take 10 to 20 us each for every message, more
than the message itself. Polling avoids this when it succeeds, and wastes a core's time when it does
not. So polling is bounded, stops for a while after it failed, and is skipped if no other thread
could answer meanwhile.

The poll never yields the core between two tries: among busy processes sched_yield(2) gives it away
for milliseconds.
"""

from __future__ import annotations

import functools
import os
import select
import socket
import struct
import time
from collections.abc import Callable

# TIMEOUT: twice the time that a peer takes if a message must wake it first; our choice.
LIMIT_S = 100e-6
LONGEST_REST = 128  # messages handled without polling after a failed poll, at most
# A successful poll saves about a quarter of the cost of a failed one.
_SUCCESS, _FAILURE = 1, 4
_TOLERATED = 12  # weighted failures minus successes; from here on, failed polls stop polling
_MOST_DOUBT = _TOLERATED + LONGEST_REST.bit_length()
_PEER = struct.Struct("=iII")  # asm-generic/socket.h, SO_PEERCRED: process, user, group


class Attention:
    """Decides for one receiver of messages, in one thread, whether to poll before it sleeps."""

    def __init__(
        self, ready: Callable[[], object], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`ready` returns, without waiting, whether something has arrived."""
        self._ready = ready
        self._clock = clock
        self._doubt = 0  # grows with failures, shrinks with successes
        self._resting = 0  # messages still to be received without polling

    def look(self) -> None:
        """Return once something has arrived, or when it is time to sleep until it does."""
        if self._resting:
            self._resting -= 1
            return
        ready, clock = self._ready, self._clock
        if ready():  # it arrived before the first poll, so polling gained nothing
            return
        end = clock() + LIMIT_S
        while clock() < end:
            if ready():
                self._doubt = max(0, self._doubt - _SUCCESS)
                return
        self._doubt += _FAILURE
        if self._doubt >= _TOLERATED:
            self._resting = min(1 << self._doubt - _TOLERATED, LONGEST_REST)
            self._doubt = min(self._doubt, _MOST_DOUBT)


def sleep_at_once() -> None:
    """Replace `Attention.look` if polling cannot pay off."""


def attention_to(connection: socket.socket) -> Callable[[], None]:
    """Return the function to call before a blocking receive on `connection`: it polls, or does
    nothing.

    It does nothing if this process has one core, or if the peer is one of its threads: that thread
    needs the interpreter, which the poll would hold.
    """
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    peer, _, _ = _PEER.unpack(credentials)
    if len(os.sched_getaffinity(0)) == 1 or peer == os.getpid():
        return sleep_at_once
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return Attention(functools.partial(poll.poll, 0)).look
