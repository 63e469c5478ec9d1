"""Guest tests: the unmodified driver brings the card up through VFIO and computes on it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from lab.kernel.guest.amd import navi31
from lab.kernel.guest.host import within
from ugpu.hcq.errors import BadArgument, TransportError
from ugpu.hcq.transport.base import ResetKind
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.system import System
from ugpu.hcq.transport.vfio.transport import VfioTransport

Note = Callable[[str, object], None]


def test_the_card_is_on_the_bus() -> None:
    function = PciFunction.find(System(), navi31.address())
    assert function.address.split(":")[1] != "00", "it sits behind the root port"
    bars = {bar.index: bar.size for bar in function.bars() if bar.size}
    assert bars[0] == 1 << 30 and bars[2] == 2 << 20 and bars[5] == 1 << 20
    assert not any(read_config(function, 0x30, 4)), "no expansion ROM"


def read_config(function: PciFunction, offset: int, size: int) -> bytes:
    with (function.folder / "config").open("rb") as file:
        file.seek(offset)
        return file.read(size)


def test_demo(record_property: Note) -> None:
    with navi31.bound() as name:
        begin = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "ugpu.tools.cli", "demo", "--json", "--device", name],
            env=navi31.environment(), capture_output=True, text=True, check=False,
            timeout=within(navi31.PROGRAM_LIMIT_S),
        )  # fmt: skip
        seconds = time.monotonic() - begin
        assert done.returncode == 0, done.stderr[-2000:]
        result = json.loads(done.stdout)
        assert result["verdict"] == "PASS" and result["accuracy"] > 0.98
        assert result["info"]["start"] == "cold"
        record_property("demo through VFIO, all of it (s)", f"{seconds:.1f}")
        record_property("boot of the card (ms)", result["boot_ms"])
        record_property("classifying (s)", result["run_s"])


def test_registers_and_bulk(record_property: Note) -> None:
    with navi31.bound() as name, VfioTransport(name.removeprefix("pci:"), reach_bits=44) as card:
        registers, memory = card.window(5), card.window(0)
        count = 200
        begin = time.perf_counter()
        for _ in range(count):
            registers.read32(0)
        record_property("register read (us)", f"{(time.perf_counter() - begin) / count * 1e6:.0f}")
        block = bytes(range(256)) * (4 << 10)
        begin = time.perf_counter()
        memory.write(16 << 20, block)
        rate = len(block) / (time.perf_counter() - begin) / 1e6
        record_property("VRAM write, mapped (MB/s)", f"{rate:.0f}")
        assert memory.read(16 << 20, len(block)) == block
        with pytest.raises(BadArgument):
            registers.read32(registers.size)


@pytest.mark.parametrize("kind", [ResetKind.FUNCTION, ResetKind.BUS], ids=lambda kind: kind.value)
def test_reset_then_cold_boot(kind: ResetKind) -> None:
    with navi31.bound() as name:
        with VfioTransport(name.removeprefix("pci:"), reach_bits=44) as card:
            try:
                card.reset(kind)
            except TransportError as error:
                pytest.fail(f"the kernel refuses: {error}")
            assert card.present()
        with navi31.open_card(name) as device:
            assert device.info()["start"] == "cold"
            navi31.check_copies(device)
