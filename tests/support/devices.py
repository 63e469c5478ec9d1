"""The devices that contract tests run on."""

from __future__ import annotations

import importlib.util

# device -> the module that provides it; a device whose provider is not there is a named gap
PROVIDERS = {"cpu": "hcq.cpu.device", "virtual:navi31": "am.device"}


def is_provided(name: str) -> bool:
    """Whether the driver of a device is in the tree."""
    return importlib.util.find_spec(PROVIDERS[name]) is not None
