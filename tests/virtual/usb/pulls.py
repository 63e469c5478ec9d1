"""Pulls of the virtual bridge's cable at random transfers, each followed by a plug.

`python -m tests.virtual.usb.pulls NUMBER [--first FIRST] [--seed SEED] [--firmware uas]` makes
the pulls FIRST to FIRST + NUMBER - 1 of a seed; a pull depends on seed and number alone, so that a
long series can be made in parts. It prints its progress, the pulls that went wrong, and what stayed
open; the exit status is 1 if there is any. One takes about 0.6 s on an idle core, and 10 s with the
vendor's firmware (uas).
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tests.support.pci import descriptors
from tests.support.usb.bridge_work import warnings, work
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import DeviceLost
from ugpu.virtual.amd.bus.endpoint import ChipEndpoint
from ugpu.virtual.amd.gpu import endpoint
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.usb.enclosure import Enclosure, EnclosureOptions

NAME = "virtual:navi31+usb"
NAMES = {"custom": NAME, "uas": "virtual:navi31+usb-stock"}
#: transfers that boot, work and close need together, about, where kernels are translated already; a
#: pull later than that never happens: the cable is then pulled after the close
WHOLE = 1080
WHOLES = {"custom": WHOLE, "uas": 48_000}
#: bytes of a bulk transfer that arrive before the cable goes
AFTER = (0, 0, 1, 1024, 100_000)
ENGINES_GO_ON = ("the IOMMU refuses", "bus mastering off")
#: pulls before what is open is counted for the first time
SETTLED = 5
PROGRESS = 50  # pulls between two lines


@dataclass(frozen=True)
class Pull:
    """At which transfer, after how many of its bytes, and whether the box keeps its power."""

    transfer: int
    after: int
    keeps_power: bool


@contextmanager
def enclosed(**fields: object) -> Iterator[Enclosure]:
    """An enclosure with a card, without an objection in the end."""
    card: ChipEndpoint = endpoint("navi31", options=ChipOptions(vram=1 << 30, noise=1 << 20))
    box = Enclosure(card, EnclosureOptions(**fields))  # type: ignore[arg-type]
    try:
        yield box
        assert box.objections == []
        # The card's engines go on when the way to its memory is cut.
        wrong = [text for text in card.chip.violations if not text.endswith(ENGINES_GO_ON)]
        assert wrong == []
    finally:
        box.close()
        card.chip.close()


def opened(box: Enclosure) -> Device:
    return hcq.open(NAMES[box.options.firmware], enclosure=box)


def _pulled(box: Enclosure, pull: Pull) -> str:
    """Pull the cable: the call that runs into it raises DeviceLost. close() returns; the log then
    has a warning that names the pull. Return the phase that the pull met."""
    box.pull_at(pull.transfer, pull.after)
    device, phase = None, "boot"
    with warnings() as logged:
        try:
            device = opened(box)
            phase = "work"
            work(device)
            phase = "close"
            device.close()
        except DeviceLost:
            assert not box.plugged
        else:
            named = any("unplugged" in text for text in logged)
            assert box.plugged != named, f"the pull is not named: {logged}"
            phase = "idle" if box.plugged else phase
            box.unplug()
        finally:
            if device is not None:
                with suppress(DeviceLost):
                    device.close()
    return phase


def check(pull: Pull, firmware: str = "custom") -> str:
    """The pull is named, and the next plug works. Return the phase that the pull met: boot, work,
    close, or idle after the close."""
    with enclosed(keeps_power=pull.keeps_power, firmware=firmware) as box:
        phase = _pulled(box, pull)
        box.plug()
        with opened(box) as device:
            work(device)
    return phase


def drawn(seed: int, number: int, firmware: str = "custom") -> Pull:
    """Pull `number` of a seed."""
    chance = random.Random(f"{seed} {number}")
    return Pull(chance.randint(0, WHOLES[firmware]), chance.choice(AFTER), chance.random() < 0.5)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="pull the virtual bridge's cable at random")
    parser.add_argument("number", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--firmware", choices=NAMES, default="custom")
    options = parser.parse_args(arguments)
    failed, open_before, threads_before = 0, 0, 0
    phases: Counter[str] = Counter()
    for done in range(1, options.number + 1):
        pull = drawn(options.seed, options.first + done - 1, options.firmware)
        try:
            phases[check(pull, options.firmware)] += 1
        except Exception:
            failed += 1
            print(f"{pull} went wrong:", traceback.format_exc(), sep="\n", flush=True)
        if done == SETTLED:
            open_before, threads_before = descriptors.settled(), threading.active_count()
        if done % PROGRESS == 0:
            met = ", ".join(f"{phases[phase]} {phase}" for phase in sorted(phases))
            print(f"to pull {options.first + done - 1}: {met}; {failed} went wrong", flush=True)
    leaked = descriptors.leaked(open_before) if open_before else 0
    threads = max(0, threading.active_count() - threads_before) if open_before else 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"{options.number} pulls, {failed} went wrong, {leaked} descriptors and {threads} threads "
        f"stay, {most} MiB at most"
    )
    return int(bool(failed or leaked or threads))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
