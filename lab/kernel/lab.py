"""The laboratory: boot a Debian kernel under QEMU and run guest tests in it.

    with Lab.prepare() as lab:                        LabUnavailable: skip, with its reason
        run = lab.boot("edu", tests=guest_tests("edu_vfio"), devices=[...])
    run.cases, run.verdict, run.seconds, run.console

The guest's root is this machine's file system, read-only under an overlay, so that the guest runs
this checkout with this Python. All the tests named run in one boot; their results come back as
junit XML in a folder shared with the guest. Tests ask for what only the outside can do (unplug a
device, say) through `lab.kernel.guest.host`: a second serial line with one JSON request a line.

QEMU always runs with TCG: /dev/kvm may be there without being able to run this kernel. How fast
that is depends on the machine and on what else it does: `prepare` boots a guest that does nothing,
and time limits grow with how long that took.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from lab.kernel import initrd, machine, packages
from lab.kernel.channel import Handler, Monitor, serve_requests
from lab.kernel.machine import LabUnavailable
from lab.kernel.packages import Programs

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = ROOT / "build" / "lab"
GUEST = "lab/kernel/guest"
# What guest tests import; compiled out here, as the guest's own writing is lost with it.
PACKAGES = (
    "am", "compiler", "hcq", "nv", "tools", "ugpu", "usbgpu", "virtual", "lab/kernel",
    "tests/support",
)  # fmt: skip
COMPILE_LIMIT_S = 300
IOMMU = "intel-iommu,intremap=on,caching-mode=on"  # vfio-user-pci needs the caching mode
# no_timer_check: a virtual processor that gets no time for some ticks is no broken timer, for which
# the kernel would panic (Linux arch/x86/kernel/apic/io_apic.c). tsc=reliable: nor is its clock.
KERNEL_COMMAND = (
    "console=ttyS0 quiet panic=-1 nokaslr mitigations=off intel_iommu=on "
    "no_timer_check tsc=reliable"
)
END_LIMIT_S = 10
WHOLE = (0, 1)
TEST_LIMIT_S = 120  # of one guest test, at the usual pace
# Plugins and fixtures that the guest does not need cost seconds of import under emulation.
QUICK_PYTEST = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
PYTEST_OPTIONS = ("--noconftest", "-p", "pytest_timeout", "-p", "no:cacheprovider")
# A guest that starts Python and ends takes 4 to 6 s where all runs at its usual speed.
USUAL_PROBE_S, PROBE_LIMIT_S = 6.0, 120.0
SLOWEST = 5.0  # times as slow as usual; a tier takes minutes then, and its tests' limits end
SLOW_START_S = 20  # of the guest's time until its first program; 1 to 2 s usually
# What QEMU says where this machine refuses it something.
DENIALS = ("Cannot allocate memory", "not permitted", "Permission denied", "temporarily unavail")


class LabBroken(Exception):
    """The laboratory itself does not work, on a machine that has all it needs."""


@dataclass(frozen=True)
class Case:
    """One guest test. outcome: passed, failed, skipped. figures: what it measured."""

    name: str
    outcome: str
    seconds: float
    message: str = ""
    figures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One boot. `trouble` says why the guest gave no report, `lack` why it was not even booted;
    both are empty when all went its way."""

    name: str
    cases: Sequence[Case]
    seconds: float
    console: Path
    trouble: str = ""
    lack: str = ""

    @property
    def passed(self) -> bool:
        """Whether there is a report with at least one pass and no failure."""
        outcomes = [case.outcome for case in self.cases]
        whole = not self.trouble and not self.lack
        return whole and "passed" in outcomes and "failed" not in outcomes

    @property
    def verdict(self) -> str:
        """passed, skipped or FAILED."""
        return "passed" if self.passed else "skipped" if self.lack else "FAILED"


class Lab:
    """A prepared laboratory: programs unpacked, kernel extracted. Boots are independent."""

    def __init__(
        self, folder: Path, programs: Programs, kernel: Path, *, pace: float = 1, end: float = 0
    ) -> None:
        """pace: how many times as slow as usual guests run here. end: when the last boot must have
        ended, by time.monotonic(); 0 for whenever it does."""
        self.folder = folder
        self.programs = programs
        self.kernel = kernel
        self.pace = pace
        self.end = end
        self.long = False  # whether what takes minutes is to run too
        self.part = WHOLE  # of what takes several runs: which of how many parts
        self.modules = initrd.Modules(programs.kernel / "usr/lib/modules")

    @classmethod
    @contextmanager
    def prepare(cls, folder: Path = CACHE, *, limit_s: float = 0) -> Iterator[Lab]:
        """Download and unpack what is missing below `folder`, and see that a guest comes up.

        LabUnavailable says what cannot be had. limit_s bounds preparation and all boots together.
        The folder is this laboratory's alone until the end.
        """
        end = time.monotonic() + limit_s if limit_s else 0
        folder = folder.absolute()
        machine.check(folder, ROOT)
        machine.need_room(folder, machine.ROOM_WARM)
        with _alone(folder):
            programs = packages.ensure(folder)
            kernel = programs.root / "vmlinux"
            if not kernel.is_file():
                packed = next((programs.kernel / "boot").glob("vmlinuz-*"))
                partial = kernel.with_suffix(".partial")
                partial.write_bytes(extract(packed, programs))
                partial.rename(kernel)
            _compile()
            lab = cls(folder, programs, kernel, end=end)
            lab.pace = lab.probe()
            yield lab

    def probe(self) -> float:
        """Boot a guest that starts Python; how many times as slow as usual it was, 1 at least.

        LabUnavailable when this machine cannot run QEMU, or so slowly that tests would run out of
        time. LabBroken when it can and the guest goes wrong, which is our fault or the packages'.
        """
        command = f"{sys.executable} -c pass && echo python runs > {initrd.EXCHANGE}/probe"
        run = self.boot("probe", command=command, modules=(), limit_s=PROBE_LIMIT_S)
        if run.lack:
            raise LabUnavailable(run.lack)
        if not (run.console.parent / "exchange/probe").is_file():
            raise _verdict_on(run)
        pace = max(1.0, run.seconds / USUAL_PROBE_S)
        if pace > SLOWEST:
            raise LabUnavailable(
                f"a guest that does nothing takes {run.seconds:.0f} s on this machine now, "
                f"{pace:.0f} times as long as usual"
            )
        return pace

    def with_kernel(self, kernel: Path, modules: initrd.Modules | None = None) -> Lab:
        """The same laboratory with another kernel (an ELF vmlinux) and its modules; without any, it
        has all it needs built in."""
        other = Lab(self.folder, self.programs, kernel, pace=self.pace, end=self.end)
        other.modules = modules or initrd.Modules(None)
        return other

    def boot(
        self,
        name: str,
        *,
        tests: Sequence[str] = (),
        command: str = "",
        devices: Sequence[str] = (),
        modules: Sequence[str] = ("vfio_pci", "vfio_iommu_type1"),
        handlers: Mapping[str, Handler] | None = None,
        kernel_command: str = "",
        memory: str = "1G",
        sleeps: bool = False,
        limit_s: float = 120,
    ) -> Run:
        """Run guest tests (paths in the checkout), or a shell `command`, in one boot.

        devices: QEMU arguments after the machine, the IOMMU and the shares. sleeps: the guest may
        suspend its devices, and keeps its root. handlers: what the guest may ask for by name
        besides `qmp`. QEMU is killed after `limit_s` at the usual pace;
        where that is longer than what is left of the laboratory's time, nothing is booted. The
        folder build/lab/runs/<name> keeps console.log, dmesg.txt and report.xml of the last run.
        """
        limit_s *= self.pace
        left = self.end - time.monotonic() if self.end else limit_s
        run_folder = self.folder / "runs" / name
        shutil.rmtree(run_folder, ignore_errors=True)
        exchange = run_folder / "exchange"
        exchange.mkdir(parents=True)
        if left < limit_s:
            lack = f"it may take {limit_s:.0f} s, {max(0, left):.0f} s are left of the time for all"
            return Run(name, (), 0.0, run_folder / "console.log", lack=lack)
        (exchange / "start.sh").write_text(_start(tests, command, self.pace))
        (exchange / "pace").write_text(f"{self.pace:.2f}")
        image = initrd.archive(
            (self.programs.tools / "usr/bin/busybox").read_bytes(),
            self.modules.in_order([*initrd.ROOT_MODULES, *modules]),
        )
        (run_folder / "initrd").write_bytes(image)
        started = time.monotonic()
        trouble = self._emulate(
            run_folder, devices, handlers or {}, kernel_command, memory, sleeps, limit_s
        )
        seconds = time.monotonic() - started
        cases: Sequence[Case] = ()
        report = exchange / "report.xml"
        if report.is_file():
            cases = read_report(report)
        elif not trouble and tests:
            trouble = "the guest ended without a report"
        elif not trouble and not (exchange / "status").is_file():
            trouble = "the guest ended before its command did"
        return Run(name, cases, seconds, run_folder / "console.log", trouble)

    def _emulate(
        self,
        run_folder: Path,
        devices: Sequence[str],
        handlers: Mapping[str, Handler],
        kernel_command: str,
        memory: str,
        sleeps: bool,
        limit_s: float,
    ) -> str:
        """Run QEMU to its end; what went wrong, or nothing."""
        monitor_here, monitor_there = socket.socketpair()
        channel_here, channel_there = socket.socketpair()
        there = (monitor_there.fileno(), channel_there.fileno())
        arguments = [
            *("-machine", "q35,accel=tcg,memory-backend=ram", "-cpu", "max,la57=off", "-smp", "1"),
            *("-m", memory, "-object", f"memory-backend-memfd,id=ram,size={memory},share=on"),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-kernel", str(self.kernel), "-initrd", str(run_folder / "initrd")),
            *("-append", f"{KERNEL_COMMAND} {kernel_command}".strip()),
            *("-chardev", f"file,id=console,path={run_folder / 'console.log'}"),
            *("-serial", "chardev:console"),
            *("-chardev", f"socket,id=channel,fd={there[1]}", "-serial", "chardev:channel"),
            *(
                "-chardev",
                f"socket,id=monitor,fd={there[0]}",
                "-mon",
                "chardev=monitor,mode=control",
            ),
            *_share("root", Path("/"), read_only=True, sleeps=sleeps),
            *_share("exchange", run_folder / "exchange", read_only=False, sleeps=sleeps),
            *("-device", IOMMU),
            *devices,
        ]
        share = self.programs.emulator / "usr/share"
        command = self.programs.run(
            "usr/bin/qemu-system-x86_64",
            *("-L", str(share / "qemu"), "-L", str(share / "seabios")),
            *arguments,
        )
        modules = self.programs.emulator / "usr/lib/x86_64-linux-gnu/qemu"
        errors = run_folder / "qemu.log"
        with monitor_here, channel_here, errors.open("wb") as log:
            process = subprocess.Popen(
                ["timeout", "-k", "5", str(int(limit_s) + 15), *command],
                env=dict(os.environ, QEMU_MODULE_DIR=str(modules)),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=there,
            )  # fmt: skip
            monitor_there.close()
            channel_there.close()
            monitor = Monitor(monitor_here)
            served = threading.Thread(
                target=serve_requests,
                args=(channel_here, {"qmp": monitor.execute, **handlers}),
                daemon=True,
            )
            served.start()
            trouble = ""
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                trouble = f"no end within {limit_s:g} s"
            finally:
                process.terminate()  # `timeout` passes it on to QEMU
                process.wait(END_LIMIT_S)
            served.join(END_LIMIT_S)
        said = errors.read_text(errors="replace").strip()
        if not trouble and process.returncode:
            trouble = f"QEMU ended with status {process.returncode}: {said[-500:]}"
        return trouble


def guest_tests(*names: str) -> list[str]:
    """The files of guest tests, from their names: each is once below `guest`."""
    files = {path.stem: path for path in (ROOT / GUEST).rglob("*.py")}
    return [str(files[name].relative_to(ROOT)) for name in names]


@contextmanager
def socket_path(name: str) -> Iterator[Path]:
    """A path short enough for a UNIX socket, however deep the checkout lies."""
    with tempfile.TemporaryDirectory(prefix="ugpu-lab-", dir="/tmp") as folder:
        yield Path(folder) / f"{name}.sock"


@contextmanager
def _alone(folder: Path) -> Iterator[IO[bytes]]:
    """Hold the laboratory's folder against other runs."""
    with (folder / "lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LabUnavailable(f"another run uses {folder}") from None
        yield lock


def _verdict_on(probe: Run) -> LabUnavailable | LabBroken:
    """Whether it is the machine's or our fault that the guest which does nothing did not end."""
    said = probe.console.read_text(errors="replace") if probe.console.is_file() else ""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    what = f"{probe.trouble or 'Python does not start in a guest'}; its last words: {lines[-1:]}"
    began = re.search(initrd.FIRST_WORDS + r" (\d+)", said)
    slow = probe.seconds >= PROBE_LIMIT_S and (not began or int(began[1]) > SLOW_START_S)
    if slow or any(words in probe.trouble for words in DENIALS):
        return LabUnavailable(f"no guest comes up on this machine: {what}")
    return LabBroken(what)


def read_report(path: Path) -> list[Case]:
    """The cases of a junit report. A report that was cut short is a failed case, not a pass."""
    try:
        tree = ElementTree.parse(path)
    except ElementTree.ParseError as error:
        return [Case("report", "failed", 0.0, f"the guest's report is cut short: {error}")]
    cases = []
    for node in tree.iter("testcase"):
        outcome, message = "passed", ""
        for kind, name in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
            found = node.find(kind)
            if found is not None:
                outcome, message = name, found.text or found.get("message") or ""
                break
        figures = {prop.get("name", ""): prop.get("value", "") for prop in node.iter("property")}
        title = f"{node.get('classname', '').rpartition('.')[2]}.{node.get('name')}"
        cases.append(Case(title, outcome, float(node.get("time", "0")), message, figures))
    return cases


def _compile() -> None:
    """Compile our code, the guest tests with their assertions rewritten, so that no boot has to.

    What cannot be compiled here (a checkout that may not be written) is in the guest, only slower.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    guest_tests = sorted(str(path) for path in (ROOT / GUEST).rglob("*.py"))
    for command in (
        ("compileall", "-q", *PACKAGES),
        ("pytest", *PYTEST_OPTIONS, "--collect-only", "-q", *guest_tests),
    ):
        subprocess.run(
            [sys.executable, "-m", *command], cwd=ROOT, env={**environment, **QUICK_PYTEST},
            capture_output=True, timeout=COMPILE_LIMIT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip


def _start(tests: Sequence[str], command: str, pace: float) -> str:
    """The script that the guest runs as its first process."""
    if tests:
        options = " ".join((*PYTEST_OPTIONS, "-v", "--color=no", "--tb=short"))
        command = (
            f"{sys.executable} -m pytest {options} -o junit_family=xunit1 "
            f"-o timeout={TEST_LIMIT_S * pace:.0f} "
            f"--junitxml={initrd.EXCHANGE}/report.xml {' '.join(tests)}"
        )
    settings = " ".join(f"{name}={value}" for name, value in QUICK_PYTEST.items())
    return (
        f"export {settings} OPENBLAS_NUM_THREADS=1\n"
        "export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
        f"cd {ROOT} || echo 'lab: the checkout is not in the root share'\n"
        f"( {command} )\necho $? > {initrd.EXCHANGE}/status\n"
        f"dmesg > {initrd.EXCHANGE}/dmesg.txt\n"
        "sync\necho o > /proc/sysrq-trigger\nsleep 60\n"
    )


def _share(tag: str, path: Path, *, read_only: bool, sleeps: bool) -> list[str]:
    options = f"local,id={tag},path={path},security_model=none,multidevs=remap"
    if read_only:
        options += ",readonly=on"
    share, port = f"virtio-9p-pci,fsdev={tag},mount_tag={tag}", []
    if sleeps:
        # Linux's driver of virtio resets a function at a suspend, which 9p does not survive, unless
        # it promises to keep its state; only one below a port can.
        port = ["-device", f"pcie-root-port,id={tag}-port,chassis={len(tag)}"]
        share += f",bus={tag}-port,x-pcie-pm-no-soft-reset=on"
    return ["-fsdev", options, *port, "-device", share]


def extract(packed: Path, programs: Programs) -> bytes:
    """Return the ELF kernel of a packed image."""

    def unpack(data: bytes) -> bytes:
        command = programs.run("usr/bin/zstd", "-dc")
        # zstd complains about what follows the frame in the image; the output is what counts.
        return subprocess.run(command, input=data, capture_output=True, check=False).stdout

    return initrd.extract_kernel(packed.read_bytes(), unpack)
