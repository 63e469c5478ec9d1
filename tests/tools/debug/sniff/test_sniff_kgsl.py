"""`ugpu sniff` on KGSL: our driver above its model, and a program under the preload library."""

from __future__ import annotations

import errno
import mmap
import platform
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.adreno import kgsl_calls
from tests.support.adreno.mesa import needs_mesa
from ugpu import hcq
from ugpu.hcq.errors import BadArgument, NotSupported, UsageError
from ugpu.qcom.regs import structs
from ugpu.tools.base.console import Output
from ugpu.tools.cli import main
from ugpu.tools.debug.sniff import command, node, preload
from ugpu.tools.debug.sniff.decode import Decoded
from ugpu.tools.debug.sniff.kgsl import calls, rd
from ugpu.tools.debug.sniff.kgsl.packets import Packets
from ugpu.tools.debug.sniff.kgsl.streams import Streams, _Object
from ugpu.tools.debug.sniff.recording import Call, read
from ugpu.virtual.adreno.cp import processor

QUIET = Output(as_json=False)
CHIPS = {"a630": 0x06030001, "a740": 0x43050A01}


@pytest.fixture(scope="module", params=list(CHIPS))
def ours(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of our driver: one copy between buffers."""
    path = tmp_path_factory.mktemp("sniff") / f"{request.param}.jsonl"
    _record(request.param, path, 512)
    return path


def _record(chip: str, path: Path, size: int) -> None:
    def work(device: hcq.Device) -> None:
        with device.alloc(size) as one, device.alloc(size) as two:
            one.fill(0x01020304)
            device.queue().copy(two, one).submit()
            device.synchronize()

    attachment = node.attach(f"virtual:{chip}")
    node.record_device(attachment, f"virtual:{chip}", path, calls.DRIVER, work, 32)


def _told(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["sniff", "show", str(path)]) == 0
    return capsys.readouterr().out


def test_calls_and_packets_are_told_by_name(ours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = _told(ours, capsys)
    for wanted in (
        "DEVICE_GETPROPERTY KGSL_PROP_DEVICE_INFO", "NO_FAULT_TOLERANCE", "kgsl_command_object",
        "CP_EXEC_CS ", "SP_CS_CTRL_REG0=", "FULLREGFOOTPRINT:", "CP_WAIT_FOR_IDLE",
    ):  # fmt: skip
        assert wanted in text
    for unwanted in ("not in memory", "not a packet", "were passed", "opcode 0x"):
        assert unwanted not in text
    assert f"chip_id = 0 -> {CHIPS[ours.stem]:#x}" in text


def test_what_is_told_is_what_the_command_processor_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[int, int]] = []
    run = processor.CommandProcessor.run

    def noted(self: processor.CommandProcessor, address: int, count: int) -> None:
        ran.append((address, 4 * count))
        run(self, address, count)

    monkeypatch.setattr(processor.CommandProcessor, "run", noted)
    path = tmp_path / "ours.jsonl"
    _record("a630", path, 64)
    streams = command.streams_of(read(path))
    assert ran and [one for each in streams.submissions for one in each.buffers] == ran
    assert len(streams.dispatches) >= 2  # fill and copy
    assert streams.chip_id == CHIPS["a630"] and streams.gpu_id == 630


def test_constants_of_a_launch_are_its_parameters(ours: Path) -> None:
    """The driver's own kernel for copies: target, source, bytes."""
    streams = command.streams_of(read(ours))
    words = streams.dispatches[-1].constants
    to, source, size = words[0] | words[1] << 32, words[2] | words[3] << 32, words[4]
    assert size == 512
    for address in (to, source):
        assert streams.read(address, size) is not None


def test_two_recordings_differ_by_what_is_launched(
    ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sniff", "compare", str(ours), str(ours)]) == 0
    assert "\n~" not in capsys.readouterr().out
    other = tmp_path / "other.jsonl"
    _record(ours.stem, other, 1024)
    assert main(["sniff", "compare", str(ours), str(other)]) == 1
    assert "~ c1.x: 0x200 | 0x400" in capsys.readouterr().out


def _sections(raw: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(raw):
        kind, size = struct.unpack_from("<II", raw, at)
        yield kind, raw[at + 8 : at + 8 + size]
        at += 8 + size
    assert at == len(raw)


def test_rd_files_hold_each_submission_with_its_memory(ours: Path, tmp_path: Path) -> None:
    """Numbers of sections by hand from Mesa's redump.h."""
    target = tmp_path / "out.rd"
    assert main(["sniff", "export", str(ours), str(target)]) == 0
    found = list(_sections(target.read_bytes()))
    assert found[0] == (14, struct.pack("<Q", CHIPS[ours.stem]))
    memory: dict[int, bytes] = {}
    where = streams = 0
    for kind, data in found[1:]:
        if kind == 3:
            low, size, high = struct.unpack("<III", data)
            where = low | high << 32
        elif kind == 12:
            assert len(data) == size
            memory[where] = data
        elif kind == 6:
            low, words, high = struct.unpack("<III", data)
            at = low | high << 32
            base = next(base for base in memory if base <= at < base + len(memory[base]))
            head = struct.unpack_from("<I", memory[base], at - base)[0]
            assert head >> 28 in (4, 7) and at + 4 * words <= base + len(memory[base])
            streams += 1
            memory = memory if streams else {}
        else:
            assert kind == 13
    assert streams >= 2


def test_a_recording_without_memory_is_no_rd_file(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    attachment = node.attach("virtual:a630")
    node.record_device(attachment, "virtual:a630", path, calls.DRIVER, lambda device: None)
    with pytest.raises(BadArgument, match="--memory"):
        rd.write(command.streams_of(read(path)), tmp_path / "out.rd")
    nvidia = tmp_path / "nvidia.jsonl"
    text = path.read_text(encoding="utf-8")
    nvidia.write_text(text.replace('"driver": "kgsl"', '"driver": "580.142"'), encoding="utf-8")
    with pytest.raises(BadArgument, match=r"driver must be kgsl, got '580\.142'"):
        command.streams_of(read(nvidia))
    with pytest.raises(BadArgument, match="two kernel drivers"):
        command.compare(path, nvidia, QUIET)


def test_msm_cannot_be_recorded(tmp_path: Path) -> None:
    options = command.SniffOptions(tmp_path / "calls", tmp_path)
    with pytest.raises(NotSupported, match="msm"):
        command.run_device("msm:0", options, QUIET)


@needs_mesa
def test_our_driver_is_recorded_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "calls.jsonl"
    assert main(["sniff", "--memory", "-o", str(path), "device", "virtual:a660"]) == 0
    assert read(path).prefix == "/dev/kgsl-3d"
    assert "CP_EXEC_CS " in _told(path, capsys)


# ---- a program that is not ours ------------------------------------------------------------------


def _options(folder: Path, backend: str, memory: int = 0) -> command.SniffOptions:
    prefix = str(kgsl_calls.make_node(folder))
    return command.SniffOptions(
        folder / "calls.jsonl", folder, backend, prefix, memory, driver="kgsl"
    )


def _program(folder: Path) -> list[str]:
    script = Path(kgsl_calls.__file__)
    root = script.parent.parent.parent
    return ["env", f"PYTHONPATH={root}", sys.executable, str(script), str(folder)]


@pytest.mark.skipif(preload.compiler() is None, reason="no C compiler")
def test_the_preload_library_records_memory_at_submissions(tmp_path: Path) -> None:
    options = _options(tmp_path, "preload", 2)
    assert command.run(_program(tmp_path), options, QUIET) == kgsl_calls.DONE
    recording = read(options.output)
    kinds = [call.kind for call in recording.calls if call.kind != "close"]
    assert kinds == ["open", "ioctl", "ioctl", "mmap", *["doorbell", "memory", "ioctl"] * 2,
                     "ioctl"]  # fmt: skip
    decoded = calls.Decoder().all(recording)
    titles = [each.title for each in decoded if each.call.kind == "ioctl"]
    assert titles == [
        "DEVICE_GETPROPERTY KGSL_PROP_DEVICE_INFO",
        "GPUOBJ_SYNC",
        *["GPU_COMMAND"] * 3,
    ]
    synced = next(each for each in decoded if each.title == "GPUOBJ_SYNC").blocks[0]
    assert synced.before is not None and synced.before["[1].offset"] == 64
    listed = decoded[-1].blocks[0] if decoded[-1].blocks else decoded[-2].blocks[0]
    assert listed.struct == "kgsl_command_object" and listed.before is not None
    assert listed.before["gpuaddr"] == kgsl_calls.ADDRESS and listed.before["size"] == 12
    assert all(call.errno == errno.ENOTTY for call in recording.calls if call.kind == "ioctl")
    content = [call.after for call in recording.calls if call.kind == "memory"]
    third = [struct.unpack_from("<3I", raw or b"")[2] for raw in content]
    assert third == [kgsl_calls.NOP[2], kgsl_calls.NOP[2] + 1]


def test_ptrace_records_the_same_calls(tmp_path: Path) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("ptrace knows x86-64")
    options = _options(tmp_path, "ptrace")
    assert command.run(_program(tmp_path), options, QUIET) == kgsl_calls.DONE
    decoded = calls.Decoder().all(read(options.output))
    blocks = [each.blocks[0].struct for each in decoded if each.blocks]
    assert blocks == ["kgsl_devinfo", "kgsl_gpuobj_sync_obj", *["kgsl_command_object"] * 3]


def test_the_running_driver_is_found(tmp_path: Path) -> None:
    assert command.running_driver(tmp_path, tmp_path) == ""
    kgsl_calls.make_node(tmp_path)
    assert command.running_driver(tmp_path, tmp_path) == "kgsl"
    options = command.SniffOptions(tmp_path / "calls", tmp_path, proc=tmp_path, nodes=Path("/none"))
    with pytest.raises(UsageError, match="--driver kgsl"):
        command.run(["true"], options, QUIET)


# ---- tables and words ----------------------------------------------------------------------------


def test_every_call_has_a_block_of_its_size() -> None:
    layouts = structs("msm_kgsl")
    for number, name in calls.names().items():
        size = number >> 16 & 0x3FFF
        if name == "TIMELINE_DESTROY":
            assert size == 4  # a number
        else:
            assert layouts[calls.struct_of(name)].size == size, name


def test_packets_written_by_hand() -> None:
    """Headers by hand from Mesa's freedreno_pm4.h."""
    six = Packets(6)
    words = [0x48A9B081, 0x80000180, 0x70268000, 0x70B30004, 0, 4, 1, 1]
    found = [six.text(packet) for packet in six.read(words)]
    assert found[0].startswith("write SP_CS_CTRL_REG0=0x80000180 (")
    assert found[1:] == ["CP_WAIT_FOR_IDLE", "CP_EXEC_CS 0x0, 0x4, 0x1, 0x1"]
    (broken,) = six.read([0x12345678, 1])
    assert broken.name == "not a packet"
    (cut,) = six.read([0x70B30004, 0, 4])
    assert cut.name == "not a packet"
    (unknown,) = six.read([0x48FFFF01, 7])
    assert six.text(unknown) == "write register 0xffff=0x7"


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.sampled_from([6, 7]))
def test_any_words_decode(words: list[int], generation: int) -> None:
    packets = Packets(generation)
    assert all(packets.text(packet) for packet in packets.read(words))


@given(st.binary(max_size=80), st.sampled_from(sorted(calls.names())))
def test_any_block_decodes(raw: bytes, number: int) -> None:
    call = Call("ioctl", "/dev/kgsl-3d0", 0, 0, 0.0, 1, 1, request=number, before=raw, after=raw)
    each = calls.Decoder().decode(call)
    assert each.title
    streams = Streams()
    list(streams.take(Decoded(Call("doorbell", "", 0, 0, 0.0, 1, 1), "doorbell")))
    list(streams.take(each))


def test_memory_that_is_mapped_anew_is_empty() -> None:
    streams = Streams()
    place = 16 * mmap.PAGESIZE
    mapped = Call("mmap", "", place, 0, 0.0, 1, 1, length=mmap.PAGESIZE, offset=1 << 12)
    streams._objects[1] = _Object(0x1000, mmap.PAGESIZE, place)
    list(streams.take(Decoded(mapped, "mmap")))
    page = Call("memory", "", 0, 0, 0.0, 1, 1, address=place, after=b"\1" * mmap.PAGESIZE)
    list(streams.take(Decoded(page, "memory")))
    assert streams.read(0x1000, 4) == b"\1" * 4
    list(streams.take(Decoded(mapped, "mmap")))
    assert streams.read(0x1000, 4) == bytes(4)
    assert streams.read(0x1000 + mmap.PAGESIZE - 2, 4) is None
