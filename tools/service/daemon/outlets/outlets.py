"""The daemon's outputs beside its own protocol: the page, an OpenTelemetry collector, kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from ugpu.hcq.errors import MissingDependency
from ugpu.tools.service.daemon.config import Settings
from ugpu.tools.service.daemon.daemon import Daemon
from ugpu.tools.service.daemon.outlets.warmer import Warmer


class Outlet(Protocol):
    """An output, created before the daemon starts, so that a wrong configuration is reported at
    once. shown: a line that ugpud prints when it has started."""

    shown: str

    def start(self) -> None:
        """Start its threads."""
        ...

    def close(self) -> None:
        """Stop. Idempotent."""
        ...


def outlets(settings: Settings, daemon: Daemon) -> Iterator[Outlet]:
    """Create the configured outlets; HostError, MissingDependency."""
    if settings.page is not None:
        with _needs("page", "aiohttp", "aiohttp"):
            from ugpu.tools.service.page.server import Page
        yield Page(settings.page, daemon)
    if settings.otlp is not None:
        with _needs("otlp", "opentelemetry", "opentelemetry-sdk and its exporter"):
            from ugpu.tools.service.metrics.otlp import Export
        yield Export(settings.otlp, daemon)
    if settings.cache is not None:
        yield Warmer(settings.cache, settings.socket, daemon)


@contextlib.contextmanager
def _needs(extra: str, module: str, what: str) -> Iterator[None]:
    """Name the extra to install if its modules are missing."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] != module:
            raise
        raise MissingDependency(
            f"[{extra}] requires {what}, which is not installed",
            install=f"pip install 'ugpu[{extra}]'",
        ) from None
