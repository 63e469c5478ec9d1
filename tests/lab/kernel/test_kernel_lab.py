"""The laboratory's own parts, without QEMU: archives, module order, reports, lines, refusals."""

from __future__ import annotations

import json
import lzma
import shutil
import socket
import threading
import zlib
from pathlib import Path

import pytest

from lab.kernel import __main__ as runner
from lab.kernel import initrd, lab, machine, packages
from lab.kernel.channel import Monitor, serve_requests
from lab.kernel.machine import LabUnavailable
from lab.kernel.turn import in_turn, tiers
from tests import changed


def module(depends: str, soft: str = "") -> bytes:
    text = b"\x7fELF...\0license=GPL\0depends=" + depends.encode() + b"\0"
    return text + (b"softdep=pre: " + soft.encode() + b"\0" if soft else b"")


def entries(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """Read a newc archive by its description, apart from the code that writes it."""
    found: dict[str, tuple[int, bytes]] = {}
    place = 0
    while True:
        assert archive[place : place + 6] == b"070701"
        words = [int(archive[place + 6 + 8 * i : place + 14 + 8 * i], 16) for i in range(13)]
        mode, size, name_size = words[1], words[6], words[11]
        name = archive[place + 110 : place + 110 + name_size - 1].decode()
        data = place + 110 + name_size
        data += -data % 4
        if name == "TRAILER!!!":
            return found
        found[name] = (mode, archive[data : data + size])
        place = data + size
        place += -place % 4


def test_modules_come_after_what_they_need(tmp_path: Path) -> None:
    for name, image in {
        "vfio-pci.ko": module("vfio-pci-core,vfio"),
        "vfio-pci-core.ko": module("vfio", soft="irqbypass"),
        "vfio.ko": module(""),
        "irqbypass.ko": module(""),
    }.items():
        (tmp_path / name).write_bytes(image)
    (tmp_path / "packed.ko.xz").write_bytes(lzma.compress(module("vfio,built_in_here")))
    modules = initrd.Modules(tmp_path)
    order = list(modules.in_order(["virtio_pci", "vfio_pci", "packed"]))
    assert order == ["vfio", "irqbypass", "vfio_pci_core", "vfio_pci", "packed"]
    with pytest.raises(KeyError, match="no_such"):
        modules.in_order(["no_such"])


def test_archive_reads_back() -> None:
    files = entries(initrd.archive(b"BUSYBOX", {"a": b"one", "b": b"three"}))
    assert files["bin/busybox"] == (0o100755, b"BUSYBOX")
    assert files["modules.order"][1] == b"a\nb\n"
    assert files["modules/b.ko"][1] == b"three"
    assert files["init"][0] == 0o100755
    assert files["dev/console"][0] == 0o020600


def test_kernel_is_found_past_a_false_magic_number() -> None:
    kernel = b"\x7fELF" + bytes(500)
    packed = b"MZ" + b"\xfd7zXZ\0garbage" + lzma.compress(kernel) + b"tail"
    assert initrd.extract_kernel(packed, lambda data: b"") == kernel
    gzip = zlib.compressobj(wbits=31)
    packed = b"MZ" + gzip.compress(kernel) + gzip.flush()
    assert initrd.extract_kernel(packed, lambda data: b"") == kernel
    with pytest.raises(ValueError, match="no packed ELF"):
        initrd.extract_kernel(b"MZ" + bytes(100), lambda data: b"")


REPORT = """<testsuites><testsuite>
<testcase classname="lab.kernel.guest.edu.edu" name="test_a" time="0.5">
  <properties><property name="read" value="2 us"/></properties></testcase>
<testcase classname="x" name="test_b" time="1"><failure message="m">text</failure></testcase>
<testcase classname="x" name="test_c" time="1"><skipped message="why"/></testcase>
<testcase classname="x" name="test_d" time="1"><error message="m">broke</error></testcase>
</testsuite></testsuites>"""


def test_reports_say_what_failed(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    cases = lab.read_report(path)
    assert [case.outcome for case in cases] == ["passed", "failed", "skipped", "failed"]
    assert cases[0].name == "edu.test_a" and cases[0].figures == {"read": "2 us"}
    assert cases[1].message == "text" and cases[2].message == "why"
    assert not lab.Run("r", cases, 1.0, tmp_path).passed
    assert lab.Run("r", cases[:1], 1.0, tmp_path).passed
    assert not lab.Run("r", cases[:1], 1.0, tmp_path, "no end within 5 s").passed
    assert not lab.Run("r", cases[2:3], 1.0, tmp_path).passed, "skipping all is not passing"


def test_a_report_cut_short_is_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_text(REPORT[:150])
    assert [case.outcome for case in lab.read_report(path)] == ["failed"]


def test_requests_of_the_guest_are_answered_line_by_line() -> None:
    here, guest = socket.socketpair()
    with here, guest:
        handlers = {"add": lambda a, b: a + b}
        served = threading.Thread(target=serve_requests, args=(here, handlers))
        served.start()
        lines = guest.makefile("rwb")
        for text in (b"[ 1.0] kernel noise\n", b"[1]\n", b'{"do":"add","with":{"a":1,"b":2}}\n',
                     b'{"do":"sub"}\n', b'{"do":"add","with":{"c":1}}\n'):  # fmt: skip
            lines.write(text)
        lines.flush()
        answers = [json.loads(lines.readline()) for _ in range(3)]
        guest.shutdown(socket.SHUT_RDWR)
        served.join(5)
    assert answers[0] == {"result": 3}
    assert "no handler sub; there are add" in answers[1]["error"]
    assert "TypeError" in answers[2]["error"]


def test_the_monitor_passes_over_events_and_carries_refusals() -> None:
    here, there = socket.socketpair()
    with here, there:
        script = [{"QMP": {}}, {"return": {}}, {"event": "RESET"}, {"return": {"running": True}},
                  {"error": {"class": "GenericError", "desc": "Device 'x' not found"}}]  # fmt: skip
        there.sendall(b"".join(json.dumps(line).encode() + b"\n" for line in script))
        monitor = Monitor(here)
        assert monitor.execute("query-status") == {"running": True}
        with pytest.raises(OSError, match="'x' not found"):
            monitor.execute("device_del", id="x")
        there.shutdown(socket.SHUT_WR)
        with pytest.raises(OSError, match="closed"):
            monitor.execute("query-status")


def test_a_machine_without_apt_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: None)
    with pytest.raises(LabUnavailable, match="apt-get"):
        packages.ensure(tmp_path)


def test_a_full_disk_or_one_that_may_not_be_written_is_told_before_anything(tmp_path: Path) -> None:
    machine.need_room(tmp_path / "made", 4096)
    with pytest.raises(LabUnavailable, match="GiB are free"):
        machine.need_room(tmp_path, 1 << 60)
    (tmp_path / "file").touch()
    with pytest.raises(LabUnavailable, match="cannot be used"):
        machine.need_room(tmp_path / "file/folder", 4096)


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, 8 << 20 << 10), ("max", 8 << 20 << 10), ("1073741824", 1 << 30)]
)
def test_memory_is_what_the_container_leaves(
    tmp_path: Path, limit: str | None, expected: int
) -> None:
    for folder in ("proc", "sys/fs/cgroup"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 8388608 kB\n")
    if limit is not None:
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{limit}\n")
    assert machine.available_memory(tmp_path) == expected


def test_a_checkout_that_the_guest_cannot_see_is_a_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda root: 8 * machine.GIB)
    machine.check(tmp_path, tmp_path)
    with pytest.raises(LabUnavailable, match="/dev/shm/checkout lies where"):
        machine.check(tmp_path, Path("/dev/shm/checkout"))
    monkeypatch.setattr(machine, "available_memory", lambda root: machine.GIB)
    with pytest.raises(LabUnavailable, match=r"1\.0 GiB of memory"):
        machine.check(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("said", "seconds", "trouble", "lack"),
    [
        ("", 120.0, "no end within 120 s", True),  # the kernel does not even come up
        ("lab: first program after 61.5 9\n", 120.0, "no end within 120 s", True),
        ("lab: first program after 2.1 1\n", 120.0, "no end within 120 s", False),  # then it hangs
        ("lab: first program after 2.1 1\nlab: the overlay does not mount", 5.0, "", False),
        ("", 0.1, "QEMU ended with status 1: cannot set up guest memory: Cannot allocate memory",
         True),
        ("", 0.1, "QEMU ended with status 1: 'intel-iommu' is not a valid device", False),
    ],
)  # fmt: skip
def test_a_guest_that_does_not_come_up_is_a_lack_only_where_the_machine_is_at_fault(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    seconds: float,
    trouble: str,
    lack: bool,
) -> None:
    console = tmp_path / "console.log"
    console.write_text(said)
    (tmp_path / "kernel/usr/lib/modules").mkdir(parents=True)
    made = lab.Lab(tmp_path, packages.Programs(tmp_path), tmp_path / "vmlinux")
    monkeypatch.setattr(made, "boot", lambda *a, **k: lab.Run("p", (), seconds, console, trouble))
    with pytest.raises(LabUnavailable if lack else lab.LabBroken):
        made.probe()
    (tmp_path / "exchange").mkdir()
    (tmp_path / "exchange/probe").touch()
    if seconds > lab.SLOWEST * lab.USUAL_PROBE_S:
        with pytest.raises(LabUnavailable, match="times as long as usual"):
            made.probe()
    else:
        assert made.probe() == 1


def test_what_cannot_end_in_time_is_not_begun(tmp_path: Path) -> None:
    (tmp_path / "kernel/usr/lib/modules").mkdir(parents=True)
    late = lab.Lab(tmp_path, packages.Programs(tmp_path), tmp_path / "vmlinux", pace=2, end=1)
    run = late.boot("edu", tests=["x"], limit_s=50)
    assert run.verdict == "skipped" and "may take 100 s, 0 s are left" in run.lack
    assert not run.passed and runner.row(run).result == "skipped"


def test_a_folder_has_one_run_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda root: 8 * machine.GIB)
    with (
        lab._alone(tmp_path),
        pytest.raises(LabUnavailable, match="another run"),
        lab.Lab.prepare(tmp_path),
    ):
        pass


def test_a_lack_is_a_skip_of_every_tier_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "ROOT", tmp_path)

    def lacking(root: Path) -> int:
        raise LabUnavailable("no such luck")

    monkeypatch.setattr(machine, "available_memory", lacking)
    assert runner.main(["--cache", str(tmp_path)]) == 0
    table = capsys.readouterr().out.splitlines()
    names = (
        "amdgpu", "amdgpu_gfx12", "edu", "hotplug", "navi31", "nouveau", "nvidia_bare",
        "nvidia_open", "own", "usb", "usb_stock",
    )  # fmt: skip
    lines = table[-len(names) :]
    assert [line.split()[:2] for line in lines] == [[name, "skipped"] for name in names]
    assert all("no such luck" in line for line in lines)
    assert json.loads((tmp_path / "build/test-kernel.json").read_text()) == {
        "skipped": "no such luck"
    }
    assert runner.main(["no_such_tier"]) == 2
    monkeypatch.setenv(changed.NUMBER, "2")
    assert runner.main(["--cache", str(tmp_path), "--turn"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert (
        "not run: tiers amdgpu_gfx12, edu, navi31, nouveau, nvidia_bare, nvidia_open, own, usb, "
        "usb_stock (`make test-kernel` runs all)" in table
    )
    assert [line.split()[:2] for line in table[-2:]] == [
        ["hotplug", "skipped"],
        ["amdgpu", "skipped"],
    ]


def test_the_table_names_what_failed(tmp_path: Path) -> None:
    good, bad = lab.Case("a", "passed", 1.0), lab.Case("b", "failed", 1.0, "why")
    run = lab.Run("edu", [good, bad], 3.2, tmp_path)
    assert runner.row(run) == runner.Row("edu", "FAILED", "1 checks in 3 s; b")
    hung = lab.Run("edu", [], 9.0, tmp_path, "no end within 9 s")
    assert runner.row(hung) == runner.Row("edu", "FAILED", "0 checks in 9 s; no end within 9 s")
    passed = lab.Run("edu", [good, lab.Case("c", "skipped", 0.0)], 3.2, tmp_path)
    assert runner.row(passed) == runner.Row("edu", "passed", "1 checks in 3 s, 1 skipped")


def test_a_mirror_that_cannot_be_reached_is_a_reason_and_leaves_nothing(tmp_path: Path) -> None:
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not on this machine")
    keyring = tmp_path / "keys.gpg"
    keyring.touch()
    with pytest.raises(LabUnavailable, match="could not"):
        packages.ensure(tmp_path / "lab", mirror=f"file:{tmp_path}/nowhere", keyring=keyring)
    assert not (tmp_path / "lab/programs").exists()


def test_tiers_take_turns() -> None:
    turns = [in_turn(tiers(), number) for number in range(len(tiers()))]
    assert all(turn[1:] == ["amdgpu"] for turn in turns)
    assert {turn[0] for turn in turns} == set(tiers()) - {"amdgpu", "own", "nvidia_open"}
    assert in_turn(["amdgpu"], 7) == ["amdgpu"]
    assert in_turn(["own"], 7) == []
