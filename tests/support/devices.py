"""The devices that contract tests run on: every one must behave the same."""

from __future__ import annotations

DEVICES = ("cpu", "virtual:navi31", "virtual:gh100")
