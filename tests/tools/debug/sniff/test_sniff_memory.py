"""What is written before a doorbell: recorded by both ways, decoded from rings to descriptors."""

from __future__ import annotations

import platform
import struct
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.nvidia import nv_doorbell
from ugpu.hcq.errors import UsageError
from ugpu.nv import abi
from ugpu.tools.base.console import Output
from ugpu.tools.debug.sniff import preload
from ugpu.tools.debug.sniff.command import SniffOptions, run, run_device, show
from ugpu.tools.debug.sniff.decode import Decoder
from ugpu.tools.debug.sniff.memory import PAGE, Image
from ugpu.tools.debug.sniff.recording import Call, read

RING, PUSH, HERE = 0x10_0000_0000, 0x10_0000_1000, 0x7F00_0000_0000


def _program(folder: Path, what: str = "ring") -> list[str]:
    script = Path(nv_doorbell.__file__)
    root = script.resolve().parents[3]
    return ["env", f"PYTHONPATH={root}", sys.executable, str(script), str(folder), what]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A recording of our driver on a model, as `ugpu sniff show` tells it."""
    path = tmp_path_factory.mktemp("memory") / "ours.jsonl"
    options = SniffOptions(path, path.parent, memory=32)
    out = Output(as_json=False)
    run_device("virtual:gh100", options, out)
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(out, "say", lambda text, style="": said.append(text))
        show(path, out)
    return "\n".join(said)


def test_methods_descriptors_and_banks_of_our_own_driver_are_told(ours: str) -> None:
    assert "entry 0:" in ours
    assert "1: SET_OBJECT = 0xcbc0" in ours
    assert "4: SET_OBJECT = 0xc8b5" in ours
    assert "LAUNCH_DMA = " in ours
    assert "QMD_MAJOR_VERSION = 0x4" in ours
    assert "CTA_THREAD_DIMENSION0 = " in ours
    assert "    bank 0: " in ours
    assert "not in memory that was recorded" not in ours
    assert "bits that the header does not name" not in ours


@pytest.mark.skipif(preload.compiler() is None, reason="no C compiler")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="stepping knows x86-64")
def test_the_preload_library_stops_at_doorbells(tmp_path: Path) -> None:
    prefix = nv_doorbell.make_nodes(tmp_path)
    options = SniffOptions(
        tmp_path / "calls.jsonl", tmp_path, "preload", str(prefix), 2, driver="580.142"
    )
    assert run(_program(tmp_path), options, Output(as_json=False)) == nv_doorbell.DONE
    recording = read(options.output)
    kinds = [call.kind for call in recording.calls]
    assert kinds.count("doorbell") == 2  # of three: no more were asked for
    decoded = Decoder(abi.select("580.142")).all(recording)
    image = Image(decoded)
    told = [line for each in decoded for line in image.take(each.call)]
    told += image.end()
    assert told == [
        "entry 0: 2 words at 0x1000001000",
        "  4: SET_OBJECT = 0xc8b5",
        "entry 1: 2 words at 0x1000001008",
        "  4: LAUNCH_DMA = 0x182",
    ]


@pytest.mark.skipif(preload.compiler() is None, reason="no C compiler")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="stepping knows x86-64")
@pytest.mark.parametrize(("what", "most"), [("threads", 4 * nv_doorbell.ROUNDS), ("replaced", 1)])
def test_doorbells_of_threads_and_ones_that_are_gone(what: str, most: int, tmp_path: Path) -> None:
    prefix = nv_doorbell.make_nodes(tmp_path)
    options = SniffOptions(
        tmp_path / "calls.jsonl", tmp_path, "preload", str(prefix), 1000, driver="580.142"
    )
    command = _program(tmp_path, what)
    assert run(command, options, Output(as_json=False)) == nv_doorbell.DONE
    rung = [call.kind for call in read(options.output).calls].count("doorbell")
    assert min(most, nv_doorbell.ROUNDS // 2) <= rung <= most


def test_without_asking_nothing_of_memory_is_recorded(tmp_path: Path) -> None:
    if preload.compiler() is None:
        pytest.skip("no C compiler")
    prefix = nv_doorbell.make_nodes(tmp_path)
    options = SniffOptions(
        tmp_path / "calls.jsonl", tmp_path, "preload", str(prefix), driver="580.142"
    )
    assert run(_program(tmp_path), options, Output(as_json=False)) == nv_doorbell.DONE
    kinds = {call.kind for call in read(options.output).calls}
    assert kinds == {"open", "ioctl", "mmap", "close"}


def test_ptrace_says_that_it_cannot(tmp_path: Path) -> None:
    options = SniffOptions(tmp_path / "calls", tmp_path, "ptrace", memory=4, driver="580.142")
    with pytest.raises(UsageError, match="preload"):
        run(["true"], options, Output(as_json=False))


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_any_memory_decodes(push: bytes, low: int, high: int) -> None:
    image = Image([])
    image._rings.append(nv_doorbell.ring(RING))
    image._spans.append((RING, 2 * PAGE))
    page = bytearray(PAGE)
    struct.pack_into("<II", page, 0, low, high)
    list(image.take(_page(RING, bytes(page))))
    list(image.take(_page(PUSH, push.ljust(PAGE, b"\0"))))
    assert image.rung()


def test_memory_is_found_by_the_calls_that_mapped_it() -> None:
    image = Image([])
    image._ranges.append(nv_doorbell.mapped(RING, 2 * PAGE, memory=7))
    assert image.here(RING + 8) == RING + 8  # not mapped here as far as is known
    image._mapped[7] = HERE
    assert image.here(RING + PAGE + 8) == HERE + PAGE + 8
    assert image.read(RING, 8) is None
    list(image.take(_page(HERE, b"\1" * PAGE)))
    assert image.read(RING + PAGE - 8, 8) == b"\1" * 8
    assert image.read(RING + PAGE - 4, 8) is None


def test_a_descriptor_that_methods_write_to_memory_is_told() -> None:
    """To video memory that nobody mapped: the rest of its page is not known, and zeros."""
    table, at = abi.qmd("4.0"), 0x20_0000_0100
    raw = table.new(QMD_MAJOR_VERSION=4, GPC_CGA_WIDTH=2, GPC_CGA_HEIGHT=3)
    inline = struct.unpack(f"<{len(raw) // 4}I", raw)
    words = [
        _header(1, 0, 1), 0xCBC0,
        _header(1, 0x180, 4), len(raw), 1, at >> 32, at & 0xFFFF_FFFF,
        _header(1, 0x1B0, 1), 0x41,
        _header(3, 0x1B4, len(inline)), *inline,
        _header(1, 0x2B4, 1), at >> 8,
    ]  # fmt: skip
    image = Image([])
    image._rings.append(nv_doorbell.ring(RING))
    image._spans.append((RING, 2 * PAGE))
    entry = struct.pack("<II", PUSH & 0xFFFF_FFFF, PUSH >> 32 | len(words) << 10)
    list(image.take(_page(RING, entry.ljust(PAGE, b"\0"))))
    list(image.take(_page(PUSH, struct.pack(f"<{len(words)}I", *words).ljust(PAGE, b"\0"))))
    told = image.rung()
    assert f"  descriptor at {at:#x}:" in told
    assert "    GPC_CGA_HEIGHT = 0x3" in told
    (launch,) = image.launches
    assert launch.raw == bytes(raw)


def test_the_descriptor_that_another_one_starts_is_told() -> None:
    """Two that name each other are told once; one that was not recorded is said to be so."""
    table, at = abi.qmd("4.0"), 0x20_0000_0000
    one, two = at, at + 0x400
    fields: dict[str, int | str] = {
        "DEPENDENT_QMD_ENABLE": 1, "DEPENDENT_QMD_ACTION": "QMD_SCHEDULE", "GRID_HEIGHT": 1,
    }  # fmt: skip
    for after, told_last in ((one, None), (0x7000, "  descriptor at 0x7000, not recorded")):
        page = bytearray(PAGE)
        for place, next_one, width in ((one, two, 5), (two, after, 6)):
            raw = table.new(**fields, GRID_WIDTH=width, DEPENDENT_QMD0_POINTER=next_one >> 8)
            page[place - at : place - at + len(raw)] = raw
        words = [_header(1, 0, 1), 0xCBC0, _header(1, 0x2B4, 1), one >> 8]
        image = Image([])
        image._rings.append(nv_doorbell.ring(RING))
        image._spans += [(RING, 2 * PAGE), (at, PAGE)]
        entry = struct.pack("<II", PUSH & 0xFFFF_FFFF, PUSH >> 32 | len(words) << 10)
        list(image.take(_page(RING, entry.ljust(PAGE, b"\0"))))
        list(image.take(_page(PUSH, struct.pack(f"<{len(words)}I", *words).ljust(PAGE, b"\0"))))
        list(image.take(_page(at, bytes(page))))
        told = image.rung()
        assert [launch.table.get(launch.raw, "GRID_WIDTH", 0) for launch in image.launches] == [
            5,
            6,
        ]
        assert told.count("  which starts one more:") == (1 if told_last is None else 2)
        assert told_last is None or told[-1] == told_last


def _header(operation: int, method: int, count: int) -> int:
    """A method header for subchannel 1."""
    return operation << 29 | count << 16 | 1 << 13 | method >> 2


def _page(address: int, content: bytes) -> Call:
    return Call("memory", "system", 0, 0, 0.0, 1, 1, address=address, after=content)
