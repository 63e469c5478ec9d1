"""Tier "nouveau": the guest kernel's own driver for NVIDIA, unmodified, on the virtual cards.

It boots the GSP with the synthetic firmware, under the names that it asks for, makes its address
spaces and channels by the GSP's RPCs, and moves buffers with the copy engine. It is loaded,
unloaded, which takes the GSP down, and loaded again. With --long: each chip that the driver
supports, and the kernel of the backports too, once lab.kernel.newer_kernel has fetched it (--part
i/n: each n-th of these boots); with NVK above it, once lab.kernel.nvk has fetched that. On that
kernel each of `SLEEPERS` is also suspended, by Linux's own code, while a program has memory and a
channel; the card loses its power in D3. The run's folder keeps what it said (dmesg.txt), what it
touched (accesses.txt) and what it asked the GSP for (calls.txt). The tier passes when the driver
says all of `REACHED` each time, warns of nothing, and the card has nothing to object to;
docs/foreign-drivers.md has the story.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lab.kernel import newer_kernel, nvk
from lab.kernel.initrd import EXCHANGE
from lab.kernel.lab import GUEST, ROOT, Case, Lab, Run, socket_path
from lab.kernel.served import serving, slot, write_files
from ugpu.hcq.transport.base import Transport
from ugpu.hcq.transport.recorded.accesses import Access, TracingTransport
from ugpu.virtual.nvidia.gpu import facts_of
from ugpu.virtual.nvidia.gsp.bus.served import ServedCard
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.gsp.facts import boot_facts
from ugpu.virtual.nvidia.gsp.firmware.images import whole_set
from ugpu.virtual.nvidia.gsp.gpu import build_card
from ugpu.virtual.nvidia.gsp.options import CardOptions
from ugpu.virtual.serve.model import Client

MEMORY = 1 << 30
# Where FSP places the carve-out, Linux 7.3.4 takes its size from the low 32 bits of its start alone
# (r535_gsp_get_static_info_fb: rsvd_size): right where the memory ends at a multiple of 4 GiB, as
# that of boards does.
WHOLE_MEMORY = 4 << 30
SUSPENDS = 2
CONTEXT = 64 << 10  # the driver clears it byte by byte
CHIPS = {
    "ad102": "NVIDIA AD102 (192000a1)",
    "ga102": "NVIDIA GA102 (172000a1)",
    "ga100": "NVIDIA GA100 (170000a1)",
    "gh100": "NVIDIA GH100 (180000a1)",
    "gb202": "NVIDIA GB202 (1b2000a1)",
    "tu102": "NVIDIA TU102 (162000a1)",
    "tu116": "NVIDIA TU116 (168000a1)",
}
# Chips on which the newer kernel suspends; firmware 535.113.01 is asked otherwise to.
SLEEPERS = ("ad102", "ga102", "tu102", "ga100", "tu116")
# Words of the driver, in the order in which it says them on a board.
REACHED = ("drm: VRAM: ", "drm: MM: using COPY for buffer copies", "[drm] Initialized nouveau 1.4.")
UNLOADED = "the module is gone"
# The driver lets the GSP choose the handles of NVK's copy objects, and frees them by none.
NAMELESS = "/0x0: OBJECT_NOT_FOUND"
NEVER = ("WARNING:", "*ERROR*", "failed to idle channel", "gsp: Timeout", "Oops", "BUG:")
# GA100 is a chip that the driver drives on request only.
OPTIONS = (
    "modeset=2 runpm=0 debug=gsp=debug,falcon=debug,fifo=debug config=NvEnableUnsupportedChipsets=1"
)
# The driver polls without yielding: on a slow host the kernel would report a lockup.
KERNEL_COMMAND = "loglevel=7 nosoftlockup no_console_suspend"
PROM, PRAMIN = range(0x300000, 0x400000), range(0x700000, 0x800000)


class Trace:
    """Accesses of registers, one line for a run of equal ones."""

    def __init__(self) -> None:
        self._last, self._times = "", 0
        self.lines: list[str] = []

    def __call__(self, access: Access) -> None:
        if access.window != 0 or access.offset in PROM or access.offset in PRAMIN:
            return
        verb = "<-" if access.is_write else "->"
        shown = f"{access.value:#x}" if access.value is not None else f"{access.width} bytes"
        line = f"{access.offset:#x} {verb} {shown}"
        self._times = self._times + 1 if line == self._last else 1
        self._last = line
        if self._times > 1:
            self.lines[-1] = f"{line} (x{self._times})"
        else:
            self.lines.append(line)


class TracedCard(ServedCard):
    """A served card whose clients are listened to."""

    def __init__(self, card: Card, trace: Trace) -> None:
        super().__init__(card)
        self._trace = trace

    def attach(self, client: Client) -> Transport:
        return TracingTransport(super().attach(client), self._trace, windows=(0,))


@contextmanager
def served(socket: Path, chip: str) -> Iterator[tuple[Card, Trace]]:
    """A card behind a server that listens. In D3 it has no power."""
    card = build_card(
        chip,
        CardOptions(
            memory=WHOLE_MEMORY if boot_facts(chip).way == "fsp" else MEMORY,
            platform=False, cut_in_d3=True, context=CONTEXT, access_maps=CONTEXT,
        ),
    )  # fmt: skip
    trace = Trace()
    try:
        with serving(socket, TracedCard(card, trace)):
            yield card, trace
    finally:
        card.close()


def run(lab: Lab) -> list[Run]:
    """A boot of AD102; with `long`, of each chip that the module supports, with both kernels, or
    the part of them that is asked for."""
    drivers = [_driver(lab, "")]
    newer = newer_kernel.laboratory(lab) if lab.long else None
    if newer is not None:
        drivers.append(_driver(newer, newer_kernel.release(lab.folder).partition("+")[0]))
    boots = [(boot, driver, chip) for driver in drivers for chip in driver.chips()]
    boots += [(sleep, driver, chip) for driver in drivers[1:] for chip in SLEEPERS]
    first, step = lab.part
    runs = []
    for work, driver, chip in boots[first::step] if lab.long else boots[:1]:
        with socket_path("nouveau") as socket:
            runs.append(work(driver, socket, chip))
    return runs


@dataclass(frozen=True)
class Driver:
    """A kernel's driver. lab: with that kernel. release: "" for the laboratory's own. provided: the
    folder with module and firmware. modules: those that it needs."""

    lab: Lab
    release: str
    provided: Path
    modules: list[str]
    image: bytes

    def chips(self) -> list[str]:
        """Return the chips that it supports."""
        found = [
            chip
            for chip in CHIPS
            if f"nvidia/{boot_facts(chip).folder}/gsp/gsp-".encode() in self.image
        ]
        # Linux 6.12 has no SEC2 for GA100, and follows a null pointer where it would use it.
        return found if self.release else [chip for chip in found if chip != "ga100"]


def _driver(lab: Lab, release: str) -> Driver:
    *others, wanted = lab.modules.in_order(["nouveau"]).items()
    provided = lab.folder / f"nouveau-{release}"
    driver = Driver(lab, release, provided, [name for name, _ in others], wanted[1])
    for chip in driver.chips():
        write_files(provided / "firmware", whole_set(chip))
    (provided / "nouveau.ko").write_bytes(driver.image)
    return driver


def boot(driver: Driver, socket: Path, chip: str) -> Run:
    """Boot a guest with the card: load, unload, load again, and NVK if it was fetched."""
    busybox = f"{driver.lab.programs.tools}/usr/bin/busybox"
    insert = _insert(driver)
    command = (
        f"{insert}{busybox} timeout 60 {busybox} rmmod nouveau && echo {UNLOADED} > /dev/kmsg; "
        f"{insert}"
    )
    above = nvk.tree(driver.lab.folder) if driver.lab.long else None
    if above is not None:
        command += nvk.command(above, busybox, f"{EXCHANGE}/nvk.txt")
    done, said, facts = _boot(driver, socket, chip, command, 150 if above is None else 250)
    if done.lack:
        return done
    results = judge(said, chip, facts)
    if above is not None:
        results |= nvk.judge(_text(done.console.parent / "exchange/nvk.txt"))
    return _with(done, results)


def sleep(driver: Driver, socket: Path, chip: str) -> Run:
    """Boot a guest that suspends its devices while a program has memory and a channel."""
    program = f"{sys.executable} {ROOT / GUEST}/nvidia/nouveau_suspend.py"
    command = (
        f"{_insert(driver)}echo 0 > /sys/module/suspend/parameters/pm_test_delay; "
        f"{program} {facts_of(chip).copy_class:x} {SUSPENDS} > {EXCHANGE}/suspend.txt 2>&1; "
    )
    done, said, facts = _boot(driver, socket, chip, command, 150, sleeps=True)
    if done.lack:
        return done
    results = judge_sleep(_text(done.console.parent / "exchange/suspend.txt"))
    return _with(done, results | objections(said, facts))


def judge_sleep(said: str) -> dict[str, bool]:
    """Return what the program that outlives suspends said, as named results."""
    steps = said.splitlines()
    wanted = (
        f"{step} after suspend {number}"
        for number in range(SUSPENDS)
        for step in ("memory", "copy")
    )
    results = {step: f"right {step}" in steps for step in (*wanted, "end")}
    return results | {"nothing is wrong": not any(step.startswith("wrong") for step in steps)}


def _insert(driver: Driver) -> str:
    """Return the shell command that loads the module."""
    busybox = f"{driver.lab.programs.tools}/usr/bin/busybox"
    return (
        f"echo -n {driver.provided}/firmware > /sys/module/firmware_class/parameters/path; "
        f"{busybox} insmod {driver.provided}/nouveau.ko {OPTIONS}; ls -l /dev/dri; "
    )


def _boot(
    driver: Driver, socket: Path, chip: str, command: str, limit_s: float, *, sleeps: bool = False
) -> tuple[Run, str, dict[str, list[str]]]:
    """Run a command in a guest with the card; return the run, what the kernel said, and what the
    card noted, which the run's folder keeps."""
    with served(socket, chip) as (model, trace):
        done = driver.lab.boot(
            "-".join(filter(None, ("nouveau", chip, driver.release, "suspend" if sleeps else ""))),
            command=command,
            devices=slot(socket),
            modules=driver.modules,
            kernel_command=KERNEL_COMMAND,
            sleeps=sleeps,
            limit_s=limit_s,
        )
        facts = {
            "accesses": list(trace.lines),
            "calls": list(model.calls),
            "violations": list(model.violations),
            "notes": [
                f"{text} x{count}"
                for text, count in (*model.notes.items(), *model.registers.unknown.items())
            ],
            "refused": list(model.machine.refused),
        }
    if not done.lack:
        for name, lines in facts.items():
            (done.console.parent / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return done, _text(done.console.parent / "exchange/dmesg.txt"), facts


def _with(run: Run, results: dict[str, bool]) -> Run:
    cases = [Case(name, "passed" if well else "failed", 0.0) for name, well in results.items()]
    return replace(run, cases=cases)


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.is_file() else ""


def judge(said: str, chip: str, facts: dict[str, list[str]]) -> dict[str, bool]:
    """What the driver said, and what the card objects to, as named results."""
    first, _, again = said.partition(UNLOADED)
    words = (CHIPS[chip], *REACHED)
    results = {f"nouveau says: {word}": word in first for word in words}
    results |= {f"loaded again it says: {word}": word in again for word in words}
    results["it is unloaded"] = UNLOADED in said
    return results | objections(said, facts)


def objections(said: str, facts: dict[str, list[str]]) -> dict[str, bool]:
    """Return what the driver warns of, and what the card objects to, as named results."""
    return {
        "it warns of nothing": not any(word in said for word in NEVER),
        "the card has nothing to object to": not facts["violations"],
        "the GSP refuses nothing": all(NAMELESS in text for text in facts["refused"]),
    }
