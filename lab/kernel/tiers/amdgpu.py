"""Tier "amdgpu": the guest kernel's own driver, unmodified, probes the virtual Navi31.

What it wants of a card was not written with this model in view, so every register or table it
misses is a gap of the model. It gets the synthetic firmware under the names it asks for. It is
loaded, unloaded and loaded again, when it resets the card first. Then the card gets too hot. The
run's folder keeps what it said (dmesg.txt) and what it touched (accesses.txt, registers by name).
The tier passes when the driver says all of `REACHED` each time, warns of nothing and notices the
heat; docs/foreign-drivers.md has the story.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lab.kernel.initrd import EXCHANGE
from lab.kernel.lab import Case, Lab, Run, socket_path
from lab.kernel.served import serving, slot
from tests.support.amd.am_navi31 import build_chip
from ugpu.am.chips import facts_of
from ugpu.am.chips.facts import ChipFacts
from ugpu.hcq.transport.base import Transport
from ugpu.hcq.transport.recorded.accesses import Access, TracingTransport
from ugpu.virtual.amd.bus.served import ServedChip
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.generations.record import generation_of
from ugpu.virtual.amd.options import ChipOptions, Delays
from ugpu.virtual.serve.model import Client

VRAM = 1 << 30
DOORBELL_BAR, REGISTER_BAR = 2, 5
UNMODELLED = (12, 271)  # hardware ids of video and display, which this card says it lacks
# Words of the driver, in the order in which it says them on a board.
REACHED = (
    "initializing kernel modesetting (IP DISCOVERY 0x1002:0x744C",
    "Fetched VBIOS from ROM",
    "RAM width 384bits GDDR6",
    "PCIE GART of 512M enabled",
    "for PSP TMR",
    "SMU is initialized successfully!",
    "amdgpu: added device 1002:744c",
    "ring gfx_0.0.0 uses VM inv eng",
    "ring gfx_1.1.1 ib test pass",
    "ring compute_1.2.2 ib test pass",
    "ring sdma_1.3.3 ib test pass",
    "[drm] Initialized amdgpu 3.",
)
UNLOADED = "the module is gone"
TOO_HOT = "GPU over temperature range(SW CTF) detected!"
HEATED = (TOO_HOT, "System is going to shutdown due to GPU SW CTF!")  # errors that it is to report
CELSIUS, HEAT_LIMIT_S = 125, 30
_ASKED = "thm.THM_THERMAL_INT_ENA <- 0x38"  # it wants to be told
_QUIET_S = 1.0  # the driver has nothing more to do


class Trace:
    """Accesses by name, one line for a run of equal ones. `lines` may be read at any time."""

    def __init__(self, chip: Chip) -> None:
        self._chip = chip
        self._last, self._times = "", 0
        self.lines: list[str] = []

    def __call__(self, access: Access) -> None:
        place = f"bar{access.window} {access.offset:#x}"
        if access.window == REGISTER_BAR:
            owner = self._chip.space.owner(access.offset >> 2)
            place = f"{owner[0]}.{owner[1]}" if owner else f"nobody's {access.offset:#x}"
        elif access.window != DOORBELL_BAR:
            return
        verb = "<-" if access.is_write else "->"
        shown = f"{access.value:#x}" if access.value is not None else f"{access.width} bytes"
        line = f"{place} {verb} {shown}"
        self._times = self._times + 1 if line == self._last else 1
        self._last = line
        if self._times > 1:
            self.lines[-1] = f"{line} (x{self._times})"
        else:
            self.lines.append(line)


class TracedChip(ServedChip):
    """A served chip whose clients are listened to."""

    def __init__(self, chip: Chip, trace: Trace) -> None:
        super().__init__(chip, map_vram=True)
        self._trace = trace

    def attach(self, client: Client) -> Transport:
        return TracingTransport(super().attach(client), self._trace)


class Heater(threading.Thread):
    """Heats the chip once the driver was loaded twice and is idle."""

    def __init__(self, chip: Chip, trace: Trace) -> None:
        super().__init__(name="heater", daemon=True)
        self._chip, self._trace = chip, trace
        self._end = threading.Event()

    def run(self) -> None:
        seen = 0
        while not self._end.wait(_QUIET_S):
            lines = list(self._trace.lines)
            if lines.count(_ASKED) >= 2 and len(lines) == seen:
                self._chip.thermal.heat(CELSIUS)
                return
            seen = len(lines)

    def stop(self) -> None:
        self._end.set()
        self.join()


@contextmanager
def served(socket: Path, facts: ChipFacts) -> Iterator[tuple[Chip, Trace]]:
    """A chip behind a server that listens."""
    neighbours = generation_of(facts.generation).neighbours
    harvested = tuple((block[0], block[1]) for block in neighbours if block[0] in UNMODELLED)
    options = ChipOptions(
        vram=VRAM, shared_vram=True, harvested=harvested, delays=Delays(secure_os=0.2)
    )
    chip = build_chip(options, facts)
    trace = Trace(chip)
    try:
        with serving(socket, TracedChip(chip, trace)):
            yield chip, trace
    finally:
        chip.close()


def run(lab: Lab) -> list[Run]:
    """One boot."""
    return boots(lab, "amdgpu", "navi31", REACHED)


def boots(lab: Lab, tier: str, name: str, reached: Sequence[str]) -> list[Run]:
    """One boot with a card of chip `name`. reached: words that the driver must say."""
    facts = facts_of(name)
    *others, wanted = lab.modules.in_order(["amdgpu"]).items()
    provided = lab.folder / tier
    firmware = provided / "firmware/amdgpu"
    firmware.mkdir(parents=True, exist_ok=True)
    for file, image in generation_of(facts.generation).firmware.files(facts).items():
        (firmware / file).write_bytes(image)
    (provided / "amdgpu.ko").write_bytes(wanted[1])
    with socket_path(tier) as socket, served(socket, facts) as (chip, trace):
        modules = [module for module, _ in others]
        return [_boot(lab, tier, provided, modules, socket, chip, trace, reached)]


def _boot(
    lab: Lab, tier: str, provided: Path, modules: list[str], socket: Path, chip: Chip,
    trace: Trace, reached: Sequence[str],
) -> Run:  # fmt: skip
    busybox = f"{lab.programs.tools}/usr/bin/busybox"
    command = (
        # it switches the machine off where it is too hot: by this
        f"echo {busybox} true > /proc/sys/kernel/poweroff_cmd; "
        "echo 1 > /sys/module/drm/parameters/debug; "  # DRM_UT_CORE: tests of rings
        f"echo -n {provided}/firmware > /sys/module/firmware_class/parameters/path; "
        f"{busybox} insmod {provided}/amdgpu.ko; "
        "ls -l /dev/dri; ls -l /sys/bus/pci/drivers/amdgpu; "
        f"{busybox} rmmod amdgpu && echo {UNLOADED} > /dev/kmsg; "
        f"{busybox} insmod {provided}/amdgpu.ko; "
        f"for second in `{busybox} seq {HEAT_LIMIT_S}`; do "
        f"{busybox} dmesg | {busybox} grep -q 'SW CTF' && break; {busybox} sleep 1; done; "
        f"dmesg -l emerg,alert,crit,err > {EXCHANGE}/errors.txt"
    )
    heater = Heater(chip, trace)
    heater.start()
    done = lab.boot(
        tier,
        command=command,
        devices=slot(socket),
        modules=modules,
        kernel_command="loglevel=7 log_buf_len=8M",
        limit_s=200,
    )
    heater.stop()
    accesses = list(trace.lines)
    violations = list(chip.violations)
    notes = list(chip.notes)
    if done.lack:
        return done
    folder = done.console.parent
    (folder / "accesses.txt").write_text("\n".join(accesses) + "\n")
    (folder / "violations.txt").write_text("\n".join(violations) + "\n")
    (folder / "notes.txt").write_text("\n".join(notes) + "\n")
    said_file = folder / "exchange/dmesg.txt"
    said = said_file.read_text(errors="replace") if said_file.is_file() else ""
    first, _, again = said.partition(UNLOADED)
    results = {f"{tier} says: {words}": words in first for words in reached}
    results |= {f"loaded again it says: {words}": words in again for words in reached}
    results["it notices a chip that is too hot"] = TOO_HOT in again
    results["it warns of nothing"] = "WARNING:" not in said and "*ERROR*" not in said
    results["it reports no error"] = _reports_no_error(folder / "exchange/errors.txt")
    cases = [Case(name, "passed" if well else "failed", 0.0) for name, well in results.items()]
    return replace(done, cases=cases)


def _reports_no_error(file: Path) -> bool:
    """Whether what the driver said at the level of errors is of the heat alone."""
    if not file.is_file():
        return False
    lines = [line for line in file.read_text(errors="replace").splitlines() if "amdgpu" in line]
    return all(any(words in line for words in HEATED) for line in lines)
