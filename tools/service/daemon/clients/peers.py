"""Who is at the other end of a connection, as the system reports it."""

from __future__ import annotations

import os
import pwd
import select
import socket
from dataclasses import dataclass

from ugpu.hcq.remote.address import credentials
from ugpu.tools.service.daemon.clients.tokens import Rights


@dataclass(frozen=True)
class Peer:
    """The identity of a client. rights: those of a user of the UNIX socket; None: a token is
    required. pid: of a process on this machine; 0: not known. user: its user. origin: the user or
    the host, for limits on connections that have not shown a token. hello_s: seconds that are left
    until its first message must be there; None: all."""

    name: str
    rights: Rights | None
    pid: int = 0
    user: int = -1
    origin: str = ""
    hello_s: float | None = None

    @property
    def local(self) -> bool:
        """Return whether the client is connected by a UNIX socket."""
        return self.rights is not None

    @property
    def lives(self) -> bool:
        """Return whether the process may still exist."""
        if not self.pid:
            return True
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        try:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            return not poll.poll(0)  # readable once it has ended
        finally:
            os.close(handle)


def peer_of(connection: socket.socket) -> Peer:
    """Return the identity of a UNIX socket's peer, as the kernel reports it. The daemon's user and
    root are admins. The socket's file mode decides who else can connect."""
    pid, uid = credentials(connection)
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = f"uid {uid}"
    own = uid in (0, os.geteuid())
    name, who = f"{user}, pid {pid}", f"user {uid}"
    rights = Rights(name, "admin" if own else "use", user=who, limited=not own)
    return Peer(name, rights, pid, uid, who)
