"""The configuration of ugpud: one TOML file, checked completely before any device is opened.

[daemon]
socket = "/run/ugpud/ugpud.sock"    # a UNIX socket; its file mode decides who may connect
mode = "0660"
state = "/var/lib/ugpud"            # tokens, history
log = "auto"                        # "journal", "stderr"; auto: journal under systemd
clients = 1100                      # simultaneous connections of local users, and of remote ones
user_clients = 256                  # of one user or token; not of root and the daemon's user
message = "64M"                     # largest message, in bytes
messages = "1G"                     # memory of messages that have not arrived whole, of all clients
rest_s = 5                          # time without a lease until a card rests (GFXOFF); 0: never
hotplug = ["pci:*", "usb:*"]        # GPUs to adopt on arrival; default: only those listed below

[lease]
usual_s = 3600                      # of a lease that names no limit
longest_s = 86400
grace_s = 30                        # for a broken connection to be re-established; 0: none
drain_s = 5                         # for unfinished work when a lease ends; then a reset
waiters = 1000
user_leases = 64                    # leases and waiting requests of one user or token
preempt = false

[recovery]
rounds = 3                          # attempts at one failure, each harsher, before the quarantine
pause_s = 5                         # before the second attempt, doubled before each further one
trips = 5                           # failures within window_s before a card is not tried again
window_s = 3600
reboot = "systemctl reboot"         # the last resort; default: not allowed
reboot_every_s = 86400              # the shortest time between two reboots

[tcp]
listen = "0.0.0.0:7847"
certificate = "/etc/ugpud/cert.pem"
key = "/etc/ugpud/key.pem"

[page]                              # the web page: docs/page.md
listen = "127.0.0.1:7848"
certificate = "/etc/ugpud/cert.pem" # with key: TLS, required for any address but loopback
key = "/etc/ugpud/key.pem"
names = ["gpu-1.example"]           # of the machine or of a proxy before it; default: its own
verdicts = "/var/lib/ci/gpu.sqlite" # the history of hardware CI to show; default: none

[otlp]                              # metrics and events to an OpenTelemetry collector
endpoint = "http://127.0.0.1:4318"  # OTLP over HTTP
interval_s = 15
headers = { authorization = "..." } # default: none
certificate = "/etc/ugpud/ca.pem"   # of the collector's authority; default: the system's

[cache]                             # kernels compiled before clients of this machine need them
warm = ["/etc/ugpud/models/resnet.py"]  # programs, run once on each kind of device
folder = "/var/cache/ugpud/served"  # default: ugpu-served, beside the cache of ugpud's user
limit_s = 3600                      # of one run

[[device]]
name = "pci:0000:03:00.0"           # as for hcq.open
count = 1                           # of virtual devices
label = "bench-1"
memory = "8G"                       # available to leases; default: what the device reports
shares = 8                          # simultaneous holders of shared leases; 0: none
options = { vram = 1073741824 }     # as for hcq.open
power_limit_w = 100                 # watts; refused with the board's range; default: the board's
apart = true                        # in a process of its own; default: virtual devices
host_memory = "8G"                  # of this process, beside the memory of leases; then it ends
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ugpu.hcq.errors import BadArgument, HostError
from ugpu.hcq.remote.address import PORT, user_socket
from ugpu.hcq.remote.request import byte_count
from ugpu.hcq.state.checks import watts
from ugpu.hcq.state.config import config
from ugpu.hcq.state.text import is_plain, one_line
from ugpu.tools.service.daemon.cards.recovery import RecoveryPolicy
from ugpu.tools.service.daemon.clients.leases import Policy
from ugpu.tools.service.daemon.outlets import journal

FILES = (Path("/etc/ugpud/ugpud.toml"),)
_MOST_DEVICES = 256
_VIRTUAL = "virtual:"
HOST_MEMORY = 8 << 30
_MOST_BYTES = 1 << 20
PAGE_PORT = 7848
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class DeviceSettings:
    """One [[device]]. memory: bytes; 0: what the device reports. shares: simultaneous holders of
    shared leases, if the driver supports several. inside: in the process of one lease, which the
    kernels may end; not in the file. apart: the device is in a process of its own, with its driver.
    power_limit_w: applied when the device is opened; 0: the board's limit.
    host_memory: bytes that this process may use beyond those that it has after booting and those of
    leases."""

    name: str
    count: int = 1
    label: str = ""
    memory: int = 0
    options: dict[str, object] = field(default_factory=dict)
    shares: int = 8
    inside: bool = False
    apart: bool = False
    host_memory: int = HOST_MEMORY
    power_limit_w: float = 0.0


@dataclass(frozen=True)
class TcpSettings:
    """[tcp]: the address to listen at, and the certificate that the server presents."""

    host: str
    port: int
    certificate: Path
    key: Path


@dataclass(frozen=True)
class PageSettings:
    """[page]: the address that the web page listens at; a certificate and its key for TLS;
    verdicts: the history of hardware CI (tools.ci.report.history); names: further names of the host
    by which browsers may reach it."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None
    verdicts: Path | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class OtlpSettings:
    """[otlp]: where metrics and events are sent, and how often."""

    endpoint: str
    interval_s: float = 15.0
    headers: dict[str, str] = field(default_factory=dict)
    certificate: Path | None = None


@dataclass(frozen=True)
class CacheSettings:
    """[cache]: programs whose kernels are compiled ahead, the folder that clients read them from,
    and the seconds that one run may take."""

    warm: tuple[Path, ...]
    folder: Path
    limit_s: float = 3600.0

    @property
    def kernels(self) -> Path:
        """The compiler's folder below this cache (hcq.disk.cache.DiskCache)."""
        return self.folder / "kernels"


@dataclass(frozen=True)
class Settings:
    """The whole configuration file."""

    devices: tuple[DeviceSettings, ...]
    socket: Path
    mode: int = 0o600
    state: Path = Path("/var/lib/ugpud")
    clients: int = 1100
    message: int = 64 << 20
    messages: int = 1 << 30
    rest_s: float = 5.0
    drain_s: float = 5.0
    grace_s: float = 30.0
    hotplug: tuple[str, ...] = ()
    policy: Policy = field(default_factory=Policy)
    recovery: RecoveryPolicy = field(default_factory=RecoveryPolicy)
    tcp: TcpSettings | None = None
    log: str = "auto"
    page: PageSettings | None = None
    otlp: OtlpSettings | None = None
    user_clients: int = 256
    cache: CacheSettings | None = None


def read(path: Path | None) -> Settings:
    """Read a file; None: the machine's. HostError and BadArgument state the fault and its place."""
    place = path or next((file for file in FILES if file.exists()), None)
    if place is None:
        raise HostError(
            f"{FILES[0]} does not exist",
            remedy=("create it (docs/daemon.md), or run ugpud --config FILE"),
        )
    try:
        with place.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        text = content.decode("utf-8")
    except OSError as error:
        raise HostError(f"cannot read {place}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadArgument(f"{place} is not UTF-8: {error}") from None
    if len(content) > _MOST_BYTES:
        raise BadArgument(f"{place} has more than {_MOST_BYTES} bytes")
    return parse(text, str(place))


def parse(text: str, name: str = "ugpud.toml") -> Settings:
    """Check a configuration. BadArgument names the file and the key."""
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also of an int with 5,000 digits
        raise BadArgument(f"{name} is not TOML: {error}") from None
    top = _Section(name, "", content)
    daemon = _Section(name, "[daemon] ", top.table("daemon"))
    lease = _Section(name, "[lease] ", top.table("lease"))
    tcp = _Section(name, "[tcp] ", top.table("tcp")) if "tcp" in content else None
    recovery = _recovery(_Section(name, "[recovery] ", top.table("recovery")))
    page = _page(_Section(name, "[page] ", top.table("page"))) if "page" in content else None
    otlp = _otlp(_Section(name, "[otlp] ", top.table("otlp"))) if "otlp" in content else None
    cache = _cache(_Section(name, "[cache] ", top.table("cache"))) if "cache" in content else None
    rows = top.take("device", list, [])
    top.end(others=("page", "otlp", "cache"))
    usual = Policy()
    policy = Policy(
        lease.seconds("usual_s", usual.usual_s),
        lease.seconds("longest_s", usual.longest_s),
        lease.number("waiters", usual.waiters, 1, 1 << 20),
        lease.take("preempt", bool, usual.preempt),
        lease.number("user_leases", usual.user_leases, 1, 1 << 20),
    )
    drain_s = lease.seconds("drain_s", 5.0)
    grace_s = lease.seconds("grace_s", 30.0, zero=True)
    lease.end()
    devices = tuple(_device(name, number, row) for number, row in enumerate(rows, 1))
    hotplug = daemon.take("hotplug", list, [])
    if not all(
        isinstance(pattern, str) and pattern.startswith(("pci:", "usb:")) for pattern in hotplug
    ):
        raise daemon.bad("hotplug", 'a list of patterns such as "pci:*" or "usb:*"', hotplug)
    if not devices and not hotplug:
        raise BadArgument(f"{name}: expected at least one [[device]], got none")
    if sum(device.count for device in devices) > _MOST_DEVICES:
        raise BadArgument(f"{name}: expected at most {_MOST_DEVICES} devices")
    settings = Settings(
        devices,
        Path(daemon.take("socket", str, str(user_socket()))),
        daemon.mode("mode", 0o600),
        Path(daemon.take("state", str, str(Path.home() / ".local/state/ugpud"))),
        daemon.number("clients", 1100, 1, 1 << 16),
        daemon.size("message", 64 << 20, 1 << 16, 1 << 30),
        daemon.size("messages", 1 << 30, 1 << 16, 1 << 40),
        daemon.seconds("rest_s", 5.0, zero=True),
        drain_s,
        grace_s,
        tuple(hotplug),
        policy,
        recovery,
        None if tcp is None else _tcp(tcp),
        daemon.choice("log", journal.CHOICES),
        page,
        otlp,
        daemon.number("user_clients", 256, 1, 1 << 16),
        cache,
    )
    daemon.end()
    return settings


def _recovery(section: _Section) -> RecoveryPolicy:
    usual = RecoveryPolicy()
    policy = RecoveryPolicy(
        section.number("rounds", usual.rounds, 1, 100),
        section.seconds("pause_s", usual.pause_s),
        section.number("trips", usual.trips, 1, 10_000),
        section.seconds("window_s", usual.window_s),
        section.take("reboot", str, usual.reboot),
        section.seconds("reboot_every_s", usual.reboot_every_s),
    )
    section.end()
    return policy


def _tcp(section: _Section) -> TcpSettings:
    host, port = section.address("listen", PORT)
    certificate, key = (section.take(name, str, "") for name in ("certificate", "key"))
    if not certificate or not key:
        missing = "key" if certificate else "certificate"
        raise section.bad(missing, "a file, because TCP requires TLS", "nothing")
    section.end()
    return TcpSettings(host, port, Path(certificate), Path(key))


def _page(section: _Section) -> PageSettings:
    host, port = section.address("listen", PAGE_PORT)
    certificate, key, verdicts = (
        Path(text) if (text := section.take(name, str, "")) else None
        for name in ("certificate", "key", "verdicts")
    )
    if (certificate is None) != (key is None):
        raise section.bad("key" if certificate else "certificate", "a file beside the other", "")
    if certificate is None and host not in _LOOPBACK:
        expected = f"one of {', '.join(_LOOPBACK)}, or a certificate and a key"
        raise section.bad("listen", expected, host)
    names = section.take("names", list, [])
    if not all(isinstance(name, str) and name for name in names):
        raise section.bad("names", "a list of host names", names)
    section.end()
    return PageSettings(host, port, certificate, key, verdicts, tuple(names))


def _otlp(section: _Section) -> OtlpSettings:
    endpoint: str = section.take("endpoint", str, "http://127.0.0.1:4318")
    if not _is_endpoint(endpoint):
        raise section.bad("endpoint", 'a URL such as "http://127.0.0.1:4318"', endpoint)
    interval_s = section.seconds("interval_s", 15.0)
    headers: dict[str, str] = section.take("headers", dict, {})
    if not all(isinstance(header, str) for header in headers.values()):
        raise section.bad("headers", "texts by name", headers)
    certificate = section.take("certificate", str, "")
    section.end()
    return OtlpSettings(endpoint, interval_s, headers, Path(certificate) if certificate else None)


def _served() -> Path:
    """Beside the cache, where the confined processes of virtual cards cannot write."""
    return config().cache_folder.absolute().with_name("ugpu-served")


def _cache(section: _Section) -> CacheSettings:
    warm = section.take("warm", list, [])
    if not warm or not all(isinstance(name, str) and Path(name).is_absolute() for name in warm):
        raise section.bad("warm", "a list of programs, by absolute paths", warm)
    folder = Path(section.take("folder", str, str(_served())))
    if not folder.is_absolute():
        raise section.bad("folder", "an absolute path", str(folder))
    settings = CacheSettings(tuple(map(Path, warm)), folder, section.seconds("limit_s", 3600.0))
    section.end()
    return settings


def _is_endpoint(text: str) -> bool:
    try:
        address = urlsplit(text)
        port = address.port
    except ValueError:  # such as of "http://[" or a port that is not a number
        return False
    well = address.scheme in ("http", "https") and bool(address.hostname) and not address.query
    return well and (port is None or port > 0)


def _device(name: str, number: int, row: object) -> DeviceSettings:
    if not isinstance(row, dict):
        raise BadArgument(f"{name}: device must be tables, written [[device]]")
    section = _Section(name, f"[[device]] {number}: ", row)
    device = DeviceSettings(
        section.take("name", str, ""),
        section.number("count", 1, 1, _MOST_DEVICES + 1),
        section.take("label", str, ""),
        section.size("memory", 0, 0, 1 << 50),
        section.take("options", dict, {}),
        section.number("shares", 8, 0, 257),
        apart=section.take("apart", bool, str(row.get("name")).startswith(_VIRTUAL)),
        host_memory=section.size("host_memory", HOST_MEMORY, 512 << 20, 1 << 50),
        power_limit_w=section.watts("power_limit_w"),
    )
    section.end()
    if not device.name:
        raise section.bad("name", "a device as for hcq.open", "nothing")
    if device.apart and not device.name.startswith(_VIRTUAL):
        raise section.bad("apart", "false for a device that is not virtual", device.apart)
    if device.count > 1 and not device.name.startswith(("virtual:", "cpu")):
        raise section.bad("count", "1 for a device that is not virtual", device.count)
    return device


_KINDS = {
    str: "text", int: "an int", list: "a list", dict: "a table", bool: "true or false",
}  # fmt: skip


class _Section:
    """One table. Its keys are taken one by one; any key that remains is unknown."""

    def __init__(self, file: str, title: str, content: dict[str, Any]) -> None:
        self._file = file
        self._title = title
        self._given = dict(content)
        self._known: list[str] = []

    def bad(self, key: str, expected: str, value: object) -> BadArgument:
        """Return the error for one key."""
        shown = repr(value)
        shown = shown if len(shown) <= 100 else f"{shown[:100]}..."
        return BadArgument(f"{self._file}: {self._title}{key}: expected {expected}, got {shown}")

    def take(self, key: str, kind: type, usual: Any) -> Any:  # Any: a value of `kind`
        self._known.append(key)
        value = self._given.pop(key, usual)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.bad(key, _KINDS[kind], value)
        if isinstance(value, str) and not is_plain(value):
            raise self.bad(key, "text without control characters", value)
        return value

    def choice(self, key: str, choices: Sequence[str]) -> str:
        value: str = self.take(key, str, choices[0])
        if value not in choices:
            raise self.bad(key, f"one of {', '.join(choices)}", value)
        return value

    def table(self, key: str) -> dict[str, Any]:
        table: dict[str, Any] = self.take(key, dict, {})
        return table

    def number(self, key: str, usual: int, least: int, end: int) -> int:
        value: int = self.take(key, int, usual)
        if not least <= value < end:
            raise self.bad(key, f"a number from {least} to {end - 1}", value)
        return value

    def address(self, key: str, port: int) -> tuple[str, int]:
        """Return an address and a port. port: the default port, on loopback."""
        text: str = self.take(key, str, f"127.0.0.1:{port}")
        host, _, number = text.rpartition(":")
        well = number.isascii() and number.isdecimal() and len(number) <= 5
        if not host or not well or int(number) >= 1 << 16:
            raise self.bad(key, f'an address and a port such as "0.0.0.0:{port}"', text)
        return host.strip("[]"), int(number)

    def seconds(self, key: str, usual: float, *, zero: bool = False) -> float:
        self._known.append(key)
        value = self._given.pop(key, usual)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < 1e9 or not (value or zero):
            raise self.bad(key, "a positive number of seconds", value)
        return float(value)

    def watts(self, key: str) -> float:
        """Return a power limit; 0 where there is none."""
        self._known.append(key)
        if key not in self._given:
            return 0.0
        value = self._given.pop(key)
        try:
            return watts(key, value)
        except BadArgument:
            raise self.bad(key, "a positive number of watts", value) from None

    def size(self, key: str, usual: int, least: int, most: int) -> int:
        self._known.append(key)
        value = self._given.pop(key, usual)
        try:
            size = byte_count(value, key)
        except BadArgument:
            raise self.bad(key, 'bytes, or text such as "8G"', value) from None
        if not least <= size <= most:
            raise self.bad(key, f"from {least} to {most} bytes", value)
        return size

    def mode(self, key: str, usual: int) -> int:
        text = self.take(key, str, f"{usual:o}")
        try:
            value = int(text, 8)
        except ValueError:
            value = -1
        if not 0 <= value <= 0o777:
            raise self.bad(key, 'a file mode such as "0660"', text)
        return value

    def end(self, others: Sequence[str] = ()) -> None:
        """Raise BadArgument for keys that were not taken. others: further valid keys."""
        if self._given:
            every = dict.fromkeys((*self._known, *others))
            unknown = one_line(", ".join(sorted(self._given)))[:200]
            there = ", ".join(every)
            raise BadArgument(
                f"{self._file}: {self._title}unknown key {unknown}; there are: {there}"
            )
