"""Access rights: tokens bound to rights, and the users of the local socket.

A token is shown once, when it is created; the file stores its SHA-256. Only the daemon's user can
read the file (mode 0600). The daemon reads it each time a client presents a token.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from hcq.errors import AccessDenied, BadArgument, HostError
from hcq.remote.request import LeaseRequest

ROLES = ("observe", "use", "admin")
_PREFIX = "ugpu_"


class Named(Protocol):
    """A device with names that a pattern may match."""

    def matches(self, pattern: str) -> bool: ...


@dataclass(frozen=True)
class Rights:
    """name: for people. role: "observe" reads states, facts and sensors; "use" also leases; "admin"
    also ends and extends the leases of others. device: a pattern of devices."""

    name: str
    role: str
    device: str = "*"

    @property
    def admin(self) -> bool:
        """Return whether the rights allow changing other users' leases."""
        return self.role == "admin"

    def covers(self, card: Named) -> bool:
        """Return whether the rights apply to a device."""
        return card.matches(self.device)

    def check(self, request: LeaseRequest) -> None:
        """Raise AccessDenied unless the role allows the request."""
        if self.role == "observe" and request.kind != "observer":
            raise AccessDenied(
                f"the role of {self.name} is 'observe', a lease of kind {request.kind!r} "
                "requires the role 'use'",
                remedy="ugpud token create --role use",
            )


@dataclass(frozen=True)
class _Entry:
    name: str
    role: str
    device: str
    digest: str
    expires: float  # seconds since 1970; 0: never


class Tokens:
    """The tokens in a file, which need not exist. now: seconds since 1970."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, name: str, role: str, device: str, expires: float) -> str:
        """Add a token and return it. It cannot be shown again. BadArgument, HostError."""
        if role not in ROLES:
            raise BadArgument(f"role must be one of {', '.join(ROLES)}, got {role!r}")
        token = _PREFIX + secrets.token_urlsafe(32)
        entry = _Entry(name, role, device, _digest(token), expires)
        with self._locked():
            if not name or any(each.name == name for each in self._all()):
                raise BadArgument(f"name must be new and not empty, got {name!r}")
            self._write([*self._all(), entry])
        return token

    def revoke(self, name: str) -> None:
        """Remove a token by its name; BadArgument if it does not exist."""
        with self._locked():
            left = [each for each in self._all() if each.name != name]
            if len(left) == len(self._all()):
                have = ", ".join(each.name for each in self._all()) or "none"
                raise BadArgument(f"token {name!r} does not exist; existing tokens: {have}")
            self._write(left)

    def listed(self) -> list[dict[str, object]]:
        """Return all tokens without their secrets."""
        return [
            {
                **{k: v for k, v in asdict(each).items() if k != "digest"},
                "expires": _date(each.expires) if each.expires else "never",
            }
            for each in self._all()
        ]

    def rights(self, token: str | None, now: float) -> Rights:
        """Return the rights of a token; AccessDenied states why it is rejected."""
        if not token:
            raise AccessDenied(
                "this ugpud requires a token",
                remedy="ugpud token create on its machine, then token= or UGPU_DAEMON_TOKEN",
            )
        digest = _digest(token)
        for each in self._all():
            if hmac.compare_digest(each.digest, digest):
                if each.expires and each.expires <= now:
                    raise AccessDenied(
                        f"the token {each.name!r} has expired", remedy="ugpud token create"
                    )
                return Rights(each.name, each.role, each.device)
        raise AccessDenied("this ugpud does not know this token", remedy="ugpud token create")

    def _all(self) -> list[_Entry]:
        try:
            with self.path.open(encoding="utf-8") as file:
                mode, text = os.fstat(file.fileno()).st_mode, file.read()
        except FileNotFoundError:
            return []
        if mode & 0o077:
            raise HostError(f"{self.path} is readable by others", remedy=f"chmod 600 {self.path}")
        try:
            rows: list[dict[str, Any]] = json.loads(text)
            return [_Entry(**row) for row in rows]
        except (ValueError, TypeError) as error:
            raise HostError(f"{self.path} is not a file of tokens: {error}") from None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the file against other processes; a lock of a dead process is free."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise HostError(f"cannot write {self.path}: {error.strerror}") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _write(self, entries: list[_Entry]) -> None:
        """Replace the file atomically, so that a full disk leaves the old one. Under the lock."""
        text = json.dumps([asdict(each) for each in entries], indent=1)
        new = self.path.with_suffix(".new")
        try:
            new.unlink(missing_ok=True)  # left by a process that was killed
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self.path)
        except OSError as error:
            raise HostError(f"cannot write {self.path}: {error.strerror}") from None


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(seconds))


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
