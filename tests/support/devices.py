"""The devices that contract tests run on: every one must behave the same."""

from __future__ import annotations

from ugpu.am import chips

DEVICES = ("cpu", "virtual:navi31", "virtual:gh100")
# The same driver on other models: too many for the fast suite, and for benchmarks.
SLOW_DEVICES = (
    *(f"virtual:{chip}" for chip in chips.virtual_names() if f"virtual:{chip}" not in DEVICES),
    *("virtual:tu102", "virtual:ga102", "virtual:ad102", "virtual:gb202"),
    *(f"virtual:{chip}+gsp" for chip in ("ad102", "ga102", "gb202", "gh100", "tu102", "ga100")),
    "virtual:navi31+usb",
    "virtual:a740",
)
# Runs part of the fast suite, and all of the slow one: a driver above a kernel driver.
PART = ("virtual:a630",)
# Devices of a ugpud, which the contract suite starts: the same again, over a socket.
REMOTE = ("ugpud:cpu",)
SLOW_REMOTE = ("ugpud:virtual:navi31", "ugpud:virtual:gh100")
