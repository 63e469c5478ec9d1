"""How calls fail."""

from __future__ import annotations

import os


def refused(code: int, why: str) -> OSError:
    """What a call of the kernel driver that fails raises."""
    return OSError(code, f"{os.strerror(code)}: {why}")
