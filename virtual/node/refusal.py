"""Failures of calls, as the system raises them."""

from __future__ import annotations

import errno
import os


def refused(code: int, why: str) -> OSError:
    """Return the exception of a failed call of the kernel driver."""
    return OSError(code, f"{os.strerror(code)}: {why}")


def missing(path: str) -> FileNotFoundError:
    """Return the exception for a file that does not exist."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
