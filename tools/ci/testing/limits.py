"""Limits of pytest-timeout around the runs of a test.

A test's limit belongs to its run: it begins once the test has its devices, ends with the test, and
restarts in a second run. Waiting for a device and examining it afterwards do not count. The
plugin's hooks are public; only the end of a session's limit has no hook.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

_TIMER = pytest.StashKey[Any]()  # the settings of the timer that runs


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Keep the settings of a test's timer."""
    item.stash[_TIMER] = settings


@contextlib.contextmanager
def limited(item: pytest.Item) -> Iterator[None]:
    """End a test's timer with the block."""
    try:
        yield
    finally:
        _stop(item)


@contextlib.contextmanager
def suspended(item: pytest.Item) -> Iterator[None]:
    """Stop a test's timer for the block, and restart its limit afterwards."""
    settings = _stop(item)
    yield
    if settings is not None:
        item.config.hook.pytest_timeout_set_timer(item=item, settings=settings)


def session_expired(item: pytest.Item) -> bool:
    """Return whether the session's limit is over. pytest-timeout checks it only after a test."""
    key = getattr(sys.modules.get("pytest_timeout"), "SESSION_EXPIRE_KEY", None)
    end = item.config.stash.get(key, 0.0) if key is not None else 0.0
    return bool(end) and float(end) < time.time()


def _stop(item: pytest.Item) -> Any:
    settings = item.stash.get(_TIMER, None)
    if settings is not None:
        del item.stash[_TIMER]
        item.config.hook.pytest_timeout_cancel_timer(item=item)
    return settings
