"""`ugpu metrics`: an endpoint for Prometheus, a file for node_exporter, or one listing on stdout.

A scrape returns the known data and waits for no card: a thread of its own reads each
(tools.service.top.fleet). The endpoint listens on the loopback interface unless another address is
given, because it has no access control, like other Prometheus exporters.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from importlib import resources
from pathlib import Path

from ugpu.hcq import outfile
from ugpu.hcq.errors import BadArgument, HostError, MissingDependency
from ugpu.hcq.state.config import config
from ugpu.tools.base.console import Output
from ugpu.tools.service.top.fleet import Card, Fleet

LISTEN = "127.0.0.1:9464"
FIRST_S = 0.15  # how long a scrape waits for the first answer of a device opened since the last one
_TEXT = outfile.Kind("a file of metrics", rb"# (HELP|TYPE) ")
FILES = {"alerts": "alerts.yml", "dashboard": "dashboard.json"}


class Collector:
    """The collector called by prometheus_client at each scrape."""

    def __init__(self, fleet: Fleet, expected: Sequence[str], *, dcgm: bool) -> None:
        self.fleet = fleet
        self.expected = expected
        self.dcgm = dcgm

    def cards(self) -> list[Card]:
        """Return the current data of all devices."""
        cards = self.fleet.look()
        waiting = threading.Event()
        for _ in range(15):
            if all(card.last is not None or card.problem for card in cards if card.path):
                break
            waiting.wait(FIRST_S / 15)
        return cards

    def collect(self) -> Iterator[object]:
        from ugpu.tools.service.metrics.families import families  # needs prometheus_client

        yield from families(self.cards(), self.expected, dcgm=self.dcgm)


def write_file(kind: str, out: Output) -> int:
    """Print the alert rules or the dashboard for these metrics."""
    text = resources.files(__package__).joinpath(FILES[kind]).read_text("utf-8")
    out.console.out(text, highlight=False, end="")
    return 0


def run(
    out: Output,
    *,
    listen: str = LISTEN,
    once: bool = False,
    textfile: Path | None = None,
    interval_s: float = 5.0,
    expected: Sequence[str] = (),
    dcgm: bool = False,
    daemon: str | None = None,
    stop: threading.Event | None = None,
) -> int:
    """Serve until SIGINT, SIGTERM or `stop`. once: print the metrics and return. textfile: write
    them to this file every `interval_s` seconds instead of serving. daemon: a ugpud whose cards and
    leases are served too; "": the usual one."""
    try:
        import prometheus_client
        from prometheus_client import CollectorRegistry
    except ImportError:
        raise MissingDependency(
            "prometheus-client is not installed", install="pip install 'ugpu[metrics]'"
        ) from None
    if not 0.25 <= interval_s <= 3600:
        raise BadArgument(f"--interval must be 0.25 to 3600 seconds, got {interval_s:g}")
    address, port = _address(listen)
    with ExitStack() as stack:
        fleet = stack.enter_context(Fleet(config().observe_folder))
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Collector(fleet, expected, dcgm=dcgm))  # type: ignore[arg-type]
        if daemon is not None:
            from ugpu.tools.service.metrics.leases import Desk  # needs prometheus_client

            desk = stack.enter_context(Desk(daemon or None))
            registry.register(desk)
        if once:
            text = prometheus_client.generate_latest(registry).decode()
            out.console.out(text, highlight=False, end="")
            return 0
        stop = stop if stop is not None else _until_signalled(stack)
        if textfile is not None:
            while True:
                write_textfile(textfile, prometheus_client.generate_latest(registry))
                if stop.wait(interval_s):
                    return 0
        try:
            server, thread = prometheus_client.start_http_server(port, address, registry)
        except OSError as error:
            raise HostError(
                f"cannot listen on {listen}: {error.strerror or error}",
                remedy="another program uses the port; choose one by --listen ADDRESS:PORT",
            ) from None
        port = server.server_port
        out.console.print(f"metrics at http://{address}:{port}/metrics", highlight=False)
        stop.wait()
        server.shutdown()
        server.server_close()
        thread.join()
    return 0


def write_textfile(path: Path, text: bytes) -> None:
    """Replace the file atomically, as node_exporter's textfile collector requires; HostError,
    BadArgument for a file that has no metrics."""
    outfile.check_file(path, _TEXT)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_bytes(text)
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise HostError(f"cannot write {path}: {error.strerror}") from None


def _address(listen: str) -> tuple[str, int]:
    address, _, number = listen.rpartition(":")
    if not address or not number.isdecimal() or int(number) > 0xFFFF:
        raise BadArgument(f"--listen must be ADDRESS:PORT, got {listen!r}")
    return address.strip("[]"), int(number)


def _until_signalled(stack: ExitStack) -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        before = signal.signal(number, lambda *_: stop.set())
        stack.callback(signal.signal, number, before)
    return stop
