"""Duration of polling for a message before sleeping.

To sleep and be woken takes two processes on two cores 10 to 20 us each for every message, more than
the message itself; to look again and again takes none of that while it has success, and a core's
time while it has not. So looking is bounded, is left alone for a while where it was
in vain, and is never done where no thread could answer meanwhile.

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

# TIMEOUT: what a peer takes that has to be woken for a message first, twice over; our choice.
LIMIT_S = 100e-6
LONGEST_REST = 128  # messages in a row that are slept for after a look in vain
# A look that succeeds saves about a quarter of what one in vain costs.
_SUCCESS, _FAILURE = 1, 4
_BORNE = 12  # failures less successes until one of them is followed by a rest
_MOST_DOUBT = _BORNE + LONGEST_REST.bit_length()
_PEER = struct.Struct("=iII")  # asm-generic/socket.h, SO_PEERCRED: process, user, group


class Attention:
    """Decides for one receiver of messages, in one thread, whether to poll before it sleeps."""

    def __init__(
        self, ready: Callable[[], object], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`ready` says without waiting whether something came."""
        self._ready = ready
        self._clock = clock
        self._doubt = 0  # grows with failures, shrinks with successes
        self._resting = 0  # messages still to be slept for

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
                self._doubt = max(0, self._doubt - _SUCCESS)
                return
        self._doubt += _FAILURE
        if self._doubt >= _BORNE:
            self._resting = min(1 << self._doubt - _BORNE, LONGEST_REST)
            self._doubt = min(self._doubt, _MOST_DOUBT)


def sleep_at_once() -> None:
    """In place of `Attention.look`, where looking cannot pay."""


def attention_to(connection: socket.socket) -> Callable[[], None]:
    """Return the function to call before a blocking receive on `connection`: it polls, or does
    nothing.

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
