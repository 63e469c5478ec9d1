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
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from ugpu.hcq.disk import own_folder as ownfolder
from ugpu.hcq.errors import AccessDenied, BadArgument, HostError
from ugpu.hcq.state.text import is_plain

ROLES = ("observe", "use", "admin")
# The least role for each action: what a request does, on the wire or from the page.
ACTIONS = {
    "see": "observe",  # states, sensors and facts of a device; its observer leases
    "lease": "use",
    "end": "admin",  # and extend: a lease of another holder
    "quarantine": "admin",
    "recover": "admin",
    "reset": "admin",
    "download": "admin",  # bundles, which contain memory of a device
}
_DONE = {
    "see": "reading a device's state",
    "lease": "a lease that is not of kind 'observer'",
    "end": "changing another holder's lease",
    "quarantine": "a quarantine",
    "recover": "a recovery",
    "reset": "a reset",
    "download": "a bundle",
}
_PREFIX = "ugpu_"
_NAME = 100  # characters of a token's name, and of its pattern of devices
_LONGEST = 512  # characters of a token that a client presents
_FILE = 4 << 20  # bytes of the file


class Named(Protocol):
    """A device with names that a pattern may match."""

    def matches(self, pattern: str) -> bool: ...


@dataclass(frozen=True)
class Rights:
    """name: for people. role: "observe" reads states, facts and sensors; "use" also leases; "admin"
    also ends and extends the leases of others. device: a pattern of devices. user: whom the limits
    of one user count; empty: the name. limited: whether they apply, which they do not to root and
    the daemon's own user."""

    name: str
    role: str
    device: str = "*"
    user: str = ""
    limited: bool = True

    @property
    def who(self) -> str:
        """The user or token that limits count."""
        return self.user or self.name

    def covers(self, card: Named) -> bool:
        """Return whether the rights apply to a device."""
        return card.matches(self.device)

    def check(self, action: str, *cards: Named) -> None:
        """Raise AccessDenied unless the rights allow an action (ACTIONS) on all of the devices.
        Every request is checked by this function, whether it arrives on the wire or by the
        page."""
        least = ACTIONS[action]
        if ROLES.index(self.role) < ROLES.index(least):
            raise AccessDenied(
                f"the role of {self.name} is {self.role!r}, {_DONE[action]} requires the role "
                f"{least!r}",
                remedy=f"ugpud token create --role {least}",
            )
        for card in cards:
            if not self.covers(card):
                name = getattr(card, "name", "this device")
                raise AccessDenied(
                    f"the rights of {self.name} do not include {name}",
                    remedy=f"ugpud token create --device '{name}' --role {self.role}",
                )


@dataclass(frozen=True)
class _Entry:
    name: str
    role: str
    device: str
    digest: str
    expires: float  # seconds since 1970; 0: never


class Tokens:
    """The tokens in a file, which need not exist. now: seconds since 1970. Thread-safe. The file is
    read again only if it has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._guard = threading.Lock()
        self._read: tuple[tuple[int, ...], list[_Entry]] = ((), [])

    def create(self, name: str, role: str, device: str, expires: float) -> str:
        """Add a token and return it. It cannot be shown again. BadArgument, HostError."""
        if role not in ROLES:
            raise BadArgument(f"role must be one of {', '.join(ROLES)}, got {role!r}")
        for what, text in (("name", name), ("device", device)):
            if len(text) > _NAME or not is_plain(text):
                raise BadArgument(
                    f"{what} must be at most {_NAME} characters without control characters, "
                    f"got {text[:_NAME]!r}"
                )
        token = _PREFIX + secrets.token_urlsafe(32)
        entry = _Entry(name, role, device, digest_of(token), expires)
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
        return self.rights_of(digest_of(token), now)

    def rights_of(self, digest: str, now: float) -> Rights:
        """Return the rights of the token with this SHA-256; see `rights`."""
        for each in self._all():
            if hmac.compare_digest(each.digest, digest):
                if each.expires and each.expires <= now:
                    raise AccessDenied(
                        f"the token {each.name!r} has expired", remedy="ugpud token create"
                    )
                return Rights(each.name, each.role, each.device, f"token {each.name}")
        raise AccessDenied("this ugpud does not know this token", remedy="ugpud token create")

    def _all(self) -> list[_Entry]:
        """Return the tokens. HostError if the file is damaged, or another user could have written
        it."""
        with self._guard:
            try:
                found = os.lstat(self.path)
            except FileNotFoundError:
                return []
            except OSError as error:
                raise HostError(f"cannot read {self.path}: {error.strerror}") from None
            state = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
            if state != self._read[0]:
                self._read = state, self._parsed()
            return self._read[1]

    def _parsed(self) -> list[_Entry]:
        try:
            text = ownfolder.read_private(self.path, _FILE)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise HostError(
                str(error) if error.strerror is None else f"{self.path}: {error.strerror}",
                remedy=f"make it a file of the user that runs ugpud: chmod 600 {self.path}",
            ) from None
        try:
            rows = json.loads(text)
            if not isinstance(rows, list):
                raise ValueError(f"expected a list, got {type(rows).__name__}")
            return [_entry(row) for row in rows]
        except (ValueError, TypeError, RecursionError) as error:
            raise HostError(f"{self.path} is not a file of tokens: {error}") from None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the file against other processes; a lock of a dead process is free."""
        try:
            ownfolder.make_private(self.path.parent)
            handle = ownfolder.open_private(self.path.with_suffix(".lock"))
        except OSError as error:
            raise HostError(f"cannot write {self.path}: {error.strerror or error}") from None
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


def digest_of(token: str) -> str:
    """Return the SHA-256 of a token, which may be any text, surrogates included; AccessDenied if it
    is longer than a token can be."""
    if len(token) > _LONGEST:
        raise AccessDenied(f"expected a token, got {len(token)} characters")
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _entry(row: object) -> _Entry:
    """Return a row of the file; ValueError, TypeError."""
    if not isinstance(row, dict):
        raise ValueError(f"expected a table for each token, got {type(row).__name__}")
    entry = _Entry(**row)
    texts = entry.name, entry.role, entry.device, entry.digest
    if not all(isinstance(each, str) for each in texts) or entry.role not in ROLES:
        raise ValueError(f"a token has a wrong name, role, device or digest: {str(texts)[:100]}")
    if not entry.digest.isascii() or not _is_time(entry.expires):
        raise ValueError(f"token {entry.name!r} has a wrong digest or expiry")
    return entry


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
