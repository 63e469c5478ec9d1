"""`ugpu shell`, and boots in steps."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.waiting import came
from ugpu import hcq
from ugpu.hcq.errors import BadArgument, Closed, FirmwareSilent
from ugpu.hcq.find.stages import stages_of
from ugpu.tools import cli
from ugpu.tools.debug.steps import Boot
from ugpu.virtual.amd.options import FaultPlan


@pytest.fixture
def boot() -> Iterator[Boot]:
    said: list[str] = []
    made = Boot("virtual:navi31", said.append)
    made.said = said
    yield made
    made.close()


def test_a_boot_halts_where_it_is_told(boot: Boot) -> None:
    assert boot.until("firmware images") == "firmware images" == boot.at
    assert int(boot.blocks["mp0"]["MP0_SMN_C2PMSG_81"].read()) == 0
    boot.watch("mp0.MP0_SMN_C2PMSG_81")
    assert boot.until("PSP bootloader")
    assert int(boot.blocks["mp0"]["MP0_SMN_C2PMSG_81"].read()) != 0
    said: list[str] = boot.said
    assert any("MP0_SMN_C2PMSG_81: 0x00000000 ->" in line for line in said)
    assert boot.next() == "PSP ring"
    device = boot.finish()
    assert [name for name, _ in boot.stages][-1] == "copy queues"
    device.alloc(4096).copy_from(bytes(4096))
    assert boot.next() == "" and boot.finish() is device


def test_a_stage_is_repeated_and_its_registers_stay_watched(boot: Boot) -> None:
    with pytest.raises(BadArgument, match="no stage has ended yet"):
        boot.again()
    assert "not begun" in repr(boot)
    boot.until("firmware images")
    boot.watch("mp0.MP0_SMN_C2PMSG_81")
    boot.until("PSP bootloader")
    first = boot.chip
    said: list[str] = boot.said
    said.clear()
    assert boot.again() == "PSP bootloader" == boot.at
    assert boot.chip is not first and "after 'PSP bootloader'" in repr(boot)
    assert any("MP0_SMN_C2PMSG_81: 0x00000000 ->" in line for line in said)
    assert boot.again("discovery") == "discovery"
    device = boot.finish()
    assert boot.again("IH") == "IH" and device.closed


def test_an_unknown_stage_is_refused_before_anything_runs(boot: Boot) -> None:
    with pytest.raises(BadArgument, match=r"no stage 'SMUU'; did you mean 'SMU'\?.*PSP ring"):
        boot.until("SMUU")
    with pytest.raises(BadArgument, match="no stage 'lunch'; virtual:navi31 has: config space"):
        boot.until("lunch")
    with pytest.raises(BadArgument, match="did you mean 'PSP ring'"):
        boot.until("psp ring")
    assert boot.stages == [] and "not begun" in repr(boot)


def test_a_stage_that_this_boot_has_not_is_told_at_the_end(boot: Boot) -> None:
    with pytest.raises(BadArgument, match="the boot had no stage 'bus reset', and has finished"):
        boot.until("bus reset")
    assert boot.device is not None
    with pytest.raises(BadArgument, match="has already run"):
        boot.until("PSP ring")


@pytest.mark.parametrize("name", ["cpu", "virtual:navi31", "virtual:gh100", "virtual:a630"])
def test_the_stages_of_drivers_are_known(name: str) -> None:
    ran: list[str] = []
    hcq.open(name, on_stage=lambda stage, seconds: ran.append(stage)).close()
    known = stages_of(name)
    assert ran and [stage for stage in known if stage in ran] == ran


def test_a_boot_that_fails_raises_where_it_is_asked_for() -> None:
    made = Boot("virtual:navi31", lambda line: None, faults=FaultPlan(autoload_never=True))
    assert made.until("SMU")
    with pytest.raises(FirmwareSilent):
        made.next()
    with pytest.raises(FirmwareSilent):
        made.finish()
    made.close()


def test_an_abandoned_boot_leaves_nothing() -> None:
    before = threading.active_count()
    made = Boot("virtual:navi31", lambda line: None)
    made.until("PSP ring")
    made.close()
    made.close()
    with pytest.raises(Closed):
        made.next()
    assert made.device is None
    assert came(lambda: threading.active_count() <= before)


def test_a_boot_never_begun(boot: Boot) -> None:
    boot.close()
    with pytest.raises(Closed):
        boot.next()


def test_devices_without_such_stages() -> None:
    with pytest.raises(BadArgument, match="on_chip"):
        Boot("cpu").next()


def shell(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    pytest.importorskip("IPython")
    code = cli.main(["shell", *words])
    return code, capsys.readouterr().out


def test_variables_of_a_session(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = shell(
        capsys, "virtual:navi31", "--steps", "-c", "gpu.boot.until('PSP ring')",
        "-c", "print('loaded', int(gpu.mp0.MP0_SMN_C2PMSG_81.read()) != 0, gpu)",
        "-c", "print('sign', int(mp0.MP0_SMN_C2PMSG_81.read()) != 0)", "-c", "states()",
        "-c", "boot.finish()", "-c", "print(gpu.name, gc.CP_HQD_ACTIVE)",
    )  # fmt: skip
    assert code == 0
    assert "loaded True <device in its boot: <boot of virtual:navi31, after 'PSP ring'" in said
    assert "sign True" in said and "the secure OS runs" in said
    assert "virtual:navi31 <CP_HQD_ACTIVE at dword" in said


def test_a_look_without_a_boot(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = shell(capsys, "virtual:navi31", "--no-boot", "-c", "'gpu' in globals()",
                       "-c", "print('tag', int(gc.SCRATCH_REG7.read()))")  # fmt: skip
    assert code == 0 and "False" in said and "tag 0" in said


def test_what_a_command_raises_is_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell(capsys, "cpu", "-c", "gpu.alloc(-1)")[0] == 1
    assert shell(capsys, "cpu", "-c", "(")[0] == 2
    assert shell(capsys, "cpu", "-c", "states()")[1].endswith("shows no registers\n")


def test_without_ipython(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load: Any = importlib.import_module

    def missing(name: str) -> Any:
        if name.startswith("IPython"):
            raise ImportError(name)
        return load(name)

    monkeypatch.setattr("ugpu.tools.debug.shell.importlib.import_module", missing)
    assert cli.main(["shell", "cpu", "-c", "1"]) == 2
    assert "pip install 'ugpu[shell]'" in capsys.readouterr().err
