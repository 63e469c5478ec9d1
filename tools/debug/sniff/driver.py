"""The kernel driver to record: NVIDIA's by its version, or KGSL."""

from __future__ import annotations

from ugpu.nv import abi
from ugpu.tools.debug.sniff.kgsl import calls
from ugpu.tools.debug.sniff.rules import Rules

NVIDIA_PREFIX = "/dev/nvidia"


def rules_of(driver: str) -> tuple[Rules, str]:
    """Return the rules for a driver, and the start of its nodes' paths. driver: the version whose
    rules define which memory belongs to a call, such as "580.142", or "kgsl"."""
    if calls.is_kgsl(driver):
        return calls.rules(), calls.PREFIX
    return Rules.of(abi.select(driver)), NVIDIA_PREFIX
