"""Settings: a frozen dataclass, and the one place that reads the environment.

UGPU_DEVICE           device that "auto" means (default: the first real one, else cpu)
UGPU_FIRMWARE         folders with firmware images, separated by colons
UGPU_CACHE            folder for compiled kernels (default: $XDG_CACHE_HOME/ugpu)
UGPU_OBJECTS          folder that keeps compilers' output, below all other caches; for test suites
                      (hcq.disk.objects; default: none)
UGPU_LOG              level: error, warning, info, debug or trace
UGPU_TRACE            file that receives trace events, one JSON object a line
UGPU_WINOGRAD         0: do not use Winograd convolution, whose results are less precise
UGPU_TIERS            0: compile each kernel of `cpu`, and its translation on virtual AMD and Adreno
                      GPUs, for speed of execution before it first runs, not behind the program
                      (docs/compiler-design.md)
UGPU_RECORD           file that receives all accesses to a device behind a PCI transport
UGPU_RECORD_STATES    1: record the states of the device's units after each stage of bring-up, too
UGPU_CRASHES          folder for bundles of evidence, one for each failure of a device (default:
                      $XDG_STATE_HOME/ugpu/crashes); 0: none are written
UGPU_OBSERVE          folder for the sockets by which other processes of this user read telemetry of
                      open devices (default: $XDG_RUNTIME_DIR/ugpu-observe); 0: none
UGPU_POWER_COMMAND    command that cycles the power of a card; "{device}" stands for its name: the
                      last rung of `ugpu reset` (default: none)
UGPU_WAIT_LIMIT       seconds without the end of any work that a wait without a limit may take
UGPU_HOST_WITHOUT     instruction sets of this processor that generated code must not use, as
                      prefixes of their LLVM names, separated by commas: avx512,amx
UGPU_DAEMON           where ugpud listens: a socket's path, or tls://HOST:PORT (docs/daemon.md)
UGPU_DAEMON_CA        file with the certificate that signed the certificate of a ugpud behind TLS
UGPU_DAEMON_TOKEN     token that a ugpud behind TLS requires
UGPU_HOST_CACHES      bytes of a core's data caches, first and second level: 49152,2097152 (default:
                      as the system reports)
NIR_DEBUG             Mesa's own variable. If it is set, even if empty, Mesa checks its code between
                      its passes, for Adreno (compiler.codegen.adreno.mesa)
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ugpu.hcq.errors import BadArgument

_PASSED_ON = ("UGPU_", "XDG_", "HOME", "TMPDIR")
# see `without_secrets`
_PLAIN = ("PATH", "HOME", "LANG", "USER", "LOGNAME", "TMPDIR", "TZ")
_PREFIXES = ("UGPU_", "PYTHON", "LC_", "XDG_", "LD_", "MESA_", "NIR_", "IR3_")
_SECRETS = ("UGPU_DAEMON_TOKEN", "UGPU_POWER_COMMAND")
LOG_LEVELS = ("error", "warning", "info", "debug", "trace")


@dataclass(frozen=True)
class Config:
    """Settings of the process. Tests build their own; nothing else reads the environment.

    Attributes:
        device: UGPU_DEVICE: the default device of tensors; empty: `cpu`.
        firmware_folders: UGPU_FIRMWARE: where images are searched, separated by colons.
        cache_folder: UGPU_CACHE: compiled kernels, search results.
        log_level: UGPU_LOG: one of LOG_LEVELS.
        trace_file: UGPU_TRACE: a file that gets events as JSON lines.
        wait_limit_s: UGPU_WAIT_LIMIT: how long a wait may take if its caller gives no limit and no
            work of the queue ends, in seconds.
        winograd: UGPU_WINOGRAD: whether convolutions may use Winograd tiles.
        tiers: UGPU_TIERS: whether a kernel of `cpu` or a virtual GPU, and what the virtual GPU
            makes of it, runs first in a version that compiles fast.
        record_file: UGPU_RECORD: a recording of the device that is opened.
        record_states: UGPU_RECORD_STATES: whether the recording has the chip's state after each
            stage.
        host_without: UGPU_HOST_WITHOUT: instruction sets that kernels of `cpu` do not use.
        host_caches: UGPU_HOST_CACHES: bytes of the first and second level of a host core; None: as
            the system reports.
        objects_folder: UGPU_OBJECTS: compiled native code of this package, by content; None: not
            kept.
        crash_folder: UGPU_CRASHES: bundles of evidence; None: none are written.
        observe_folder: UGPU_OBSERVE: sockets that serve telemetry; None: none.
        power_command: UGPU_POWER_COMMAND: cycles a card's supply, see
            hcq.transport.pci.power_action.
        daemon: UGPU_DAEMON: address of a ugpud.
        authority: UGPU_DAEMON_CA: a file with the certificate that its server is checked against.
        token: UGPU_DAEMON_TOKEN: for TCP.
        runtime_folder: XDG_RUNTIME_DIR.
        validate_nir: NIR_DEBUG is set: Mesa validates NIR.
    """

    device: str = ""
    firmware_folders: tuple[Path, ...] = (Path("/lib/firmware"),)
    cache_folder: Path = Path("~/.cache/ugpu")
    log_level: str = "warning"
    trace_file: Path | None = None
    wait_limit_s: float = 30.0
    winograd: bool = True
    tiers: bool = True
    record_file: Path | None = None
    record_states: bool = False
    host_without: tuple[str, ...] = ()
    host_caches: tuple[int, int] | None = None
    objects_folder: Path | None = None
    crash_folder: Path | None = None
    observe_folder: Path | None = None
    power_command: str = ""
    daemon: str = ""
    authority: str = ""
    token: str = ""
    runtime_folder: Path | None = None
    validate_nir: bool = False


def from_environment(environment: Mapping[str, str]) -> Config:
    """Return the settings in `environment`; BadArgument names the invalid variable."""
    default = Config()
    level = (environment.get("UGPU_LOG") or default.log_level).lower()
    if level not in LOG_LEVELS:
        raise BadArgument(f"UGPU_LOG must be one of {', '.join(LOG_LEVELS)}", value=level)
    folders = tuple(
        _expanded("UGPU_FIRMWARE", folder)
        for folder in environment.get("UGPU_FIRMWARE", "").split(":")
        if folder
    )
    return Config(
        device=environment.get("UGPU_DEVICE", ""),
        firmware_folders=folders or default.firmware_folders,
        cache_folder=_path(environment, "UGPU_CACHE") or _default_cache(environment),
        objects_folder=_path(environment, "UGPU_OBJECTS"),
        log_level=level,
        crash_folder=_crash_folder(environment),
        observe_folder=_observe_folder(environment),
        trace_file=_path(environment, "UGPU_TRACE"),
        power_command=environment.get("UGPU_POWER_COMMAND", ""),
        record_file=_path(environment, "UGPU_RECORD"),
        record_states=_switch(environment, "UGPU_RECORD_STATES", default.record_states),
        wait_limit_s=_seconds(environment, "UGPU_WAIT_LIMIT", default.wait_limit_s),
        host_without=tuple(
            name.strip()
            for name in environment.get("UGPU_HOST_WITHOUT", "").split(",")
            if name.strip()
        ),
        winograd=_switch(environment, "UGPU_WINOGRAD", default.winograd),
        tiers=_switch(environment, "UGPU_TIERS", default.tiers),
        host_caches=_sizes(environment, "UGPU_HOST_CACHES"),
        daemon=environment.get("UGPU_DAEMON", ""),
        authority=environment.get("UGPU_DAEMON_CA", ""),
        token=environment.get("UGPU_DAEMON_TOKEN", ""),
        runtime_folder=_path(environment, "XDG_RUNTIME_DIR"),
        validate_nir="NIR_DEBUG" in environment,
    )


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    text = environment.get(name)
    return _expanded(name, text) if text else None


def _expanded(name: str, text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:  # raised by pathlib in this case
        message = f"{name}: the home folder of that user is not known"
        raise BadArgument(message, value=text) from None


def _default_cache(environment: Mapping[str, str]) -> Path:
    """Return the cache folder; in the system's temporary one if there is no home folder (a
    container's nameless user)."""
    home = environment.get("XDG_CACHE_HOME")
    if home:
        return _expanded("XDG_CACHE_HOME", home) / "ugpu"
    try:
        return Path("~/.cache/ugpu").expanduser()
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"ugpu-{os.geteuid()}"


def _crash_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder for crash bundles; None without a home folder."""
    text = environment.get("UGPU_CRASHES")
    if text:
        return None if text == "0" else _expanded("UGPU_CRASHES", text)
    state = environment.get("XDG_STATE_HOME")
    if state:
        return _expanded("XDG_STATE_HOME", state) / "ugpu" / "crashes"
    try:
        return Path("~/.local/state/ugpu/crashes").expanduser()
    except RuntimeError:
        return None


def _observe_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder for sockets; in the system's temporary one if there is no runtime folder.
    hcq.device.observe checks its owner."""
    text = environment.get("UGPU_OBSERVE")
    if text:
        return None if text == "0" else _expanded("UGPU_OBSERVE", text)
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime:
        return _expanded("XDG_RUNTIME_DIR", runtime) / "ugpu-observe"
    return Path(tempfile.gettempdir()) / f"ugpu-observe-{os.geteuid()}"


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise BadArgument(f"{name} must be a positive number of seconds", value=text)
    return value


def _sizes(environment: Mapping[str, str], name: str) -> tuple[int, int] | None:
    text = environment.get(name)
    if not text:
        return None
    parts = text.split(",")
    if len(parts) == 2 and all(part.isdecimal() and len(part) < 12 for part in parts):
        first, second = (int(part) for part in parts)
        if 4096 <= first <= second <= 1 << 30:
            return first, second
    message = f"{name} is two numbers of bytes, 4096 at least, the second no smaller: 49152,2097152"
    raise BadArgument(message, value=text)


def _switch(environment: Mapping[str, str], name: str, default: bool) -> bool:
    text = environment.get(name)
    if text not in (None, "", "0", "1"):
        raise BadArgument(f"{name} must be 0 or 1", value=text)
    return text == "1" if text else default


@functools.cache
def config() -> Config:
    """Return the settings of this process, read from the environment on first use."""
    return from_environment(os.environ)


@contextlib.contextmanager
def setting(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for this process and its children until the block ends."""
    before = os.environ.get(name)
    try:
        os.environ[name] = value
        config.cache_clear()
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
        config.cache_clear()


def passed_on() -> dict[str, str]:
    """Return the variables for a child process that was started before they changed."""
    return {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}


def without_secrets() -> dict[str, str]:
    """Return the variables for a process whose memory code of others can read. The rest may be
    secrets of this program, or of others in the same service."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _PLAIN or (name.startswith(_PREFIXES) and name not in _SECRETS)
    }


def use_temporary(folder: Path) -> None:
    """Put temporary files of this process, and of those that it starts, into `folder`. The settings
    stay as they are."""
    config()
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


def take_over(variables: Mapping[str, str]) -> None:
    """Use another process's variables (`passed_on`). In a process that has no settings yet."""
    os.environ.update(variables)
    config.cache_clear()
