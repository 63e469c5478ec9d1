"""Our own driver's calls, recorded through its node: a made-up node, and virtual NVIDIA GPUs."""

from __future__ import annotations

import ctypes
import errno
import gc
import io
import json
import weakref
from pathlib import Path

import pytest

from tests.support.nvidia import nvjitlink
from ugpu.hcq.errors import DeviceNotFound, NotSupported
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.node import NodeMapping
from ugpu.nv import abi
from ugpu.tools.cli import main
from ugpu.tools.debug.sniff import node
from ugpu.tools.debug.sniff.compare import differences, steps
from ugpu.tools.debug.sniff.decode import Decoder
from ugpu.tools.debug.sniff.recording import header, parse, read
from ugpu.tools.debug.sniff.rules import Rules

TABLE = abi.select("580.142")
CHIPS = ("tu102", "ga102", "ad102", "gh100", "gb202")


class ToyMapping:
    """Sixteen bytes."""

    size = 16
    address = 0x1000
    view = memoryview(bytearray(16))

    def read32(self, offset: int) -> int:
        return offset

    def write32(self, offset: int, value: int) -> None:
        self.view[offset] = value

    def close(self) -> None: ...


class ToyNode:
    """Refuses what is asked of UVM, sets the last word of everything else."""

    name = "toy"
    clock = Clock()

    def __init__(self) -> None:
        self.closed = False
        self.released: list[int] = []

    def open(self, path: str) -> int:
        if path.endswith("nvidia9"):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return 40

    def ioctl(self, handle: int, request: int, argument: bytearray | memoryview) -> None:
        if request < 0x10000:
            raise OSError(errno.EINVAL, "not that")
        argument[-1] = 1

    def map(self, handle: int, size: int, offset: int = 0) -> NodeMapping:
        return ToyMapping()

    def release(self, handle: int) -> None:
        self.released.append(handle)

    def read_text(self, path: str) -> str:
        return path

    def close(self) -> None:
        self.closed = True


def test_calls_pass_through_and_are_written_down() -> None:
    toy, file = ToyNode(), io.StringIO()
    recorded = node.RecordingNode(toy, file, Rules.of(TABLE))
    handle = recorded.open("/dev/nvidiactl")
    inner = (ctypes.c_char * 56)()
    block = TABLE.structs.NVOS64_PARAMETERS.new(hClass=0x80, pAllocParms=ctypes.addressof(inner))
    argument = bytearray(block.raw)
    recorded.ioctl(handle, TABLE.request("NV_ESC_RM_ALLOC"), argument)
    assert argument[-1] == 1
    with pytest.raises(OSError, match="not that"):
        recorded.ioctl(handle, 0x49, bytearray(24))
    with pytest.raises(FileNotFoundError):
        recorded.open("/dev/nvidia9")
    assert recorded.map(handle, 16).size == 16
    assert recorded.read_text("/proc/x") == "/proc/x"
    recorded.release(handle)
    recorded.close()
    assert (toy.released, toy.closed) == ([40], True)
    calls = parse(header("580.142", "node", "/dev/nvidia", []) + file.getvalue()).calls
    told = [(call.kind, call.path, call.result, call.errno) for call in calls]
    assert told == [
        ("open", "/dev/nvidiactl", 40, 0),
        ("ioctl", "/dev/nvidiactl", 0, 0),
        ("ioctl", "/dev/nvidiactl", -1, errno.EINVAL),
        ("open", "/dev/nvidia9", -1, errno.ENOENT),
        ("mmap", "/dev/nvidiactl", 0x1000, 0),
        ("close", "/dev/nvidiactl", 0, 0),
    ]
    assert calls[1].blocks[0].size == 56
    assert calls[1].before != calls[1].after


def test_a_bad_pointer_is_recorded_as_missing() -> None:
    assert node.read(16, 4) is None
    assert node.read(1 << 70, 4) is None
    held = ctypes.create_string_buffer(b"here")
    assert node.read(ctypes.addressof(held), 5) == b"here\0"


@pytest.mark.parametrize("chip", CHIPS)
def test_what_our_driver_asks_is_all_known_and_all_granted(chip: str, tmp_path: Path) -> None:
    if nvjitlink.library() is None:
        pytest.skip("nvidia-nvjitlink is not installed")
    path = tmp_path / "calls.jsonl"
    assert main(["sniff", "-o", str(path), "device", f"virtual:{chip}"]) == 0
    decoded = Decoder(TABLE).all(read(path))
    assert len(decoded) > 100
    for each in decoded:
        assert not each.remarks, (each.title, each.remarks)
        assert "ioctl 0x" not in each.title and "control 0x" not in each.title
        assert each.call.errno == 0, each.title
        granted = each.status in (None, 0) or abi.status_name(each.status or 0).startswith(
            "NV_WARN"
        )
        assert granted, (each.title, each.status)
    made = {each.title for each in decoded}
    assert "RM_ALLOC KEPLER_CHANNEL_GROUP_A" in made
    assert "UVM_MAP_EXTERNAL_ALLOCATION" in made


def test_two_runs_of_our_driver_are_the_same(tmp_path: Path) -> None:
    if nvjitlink.library() is None:
        pytest.skip("nvidia-nvjitlink is not installed")
    found = []
    for name in ("one", "two"):
        path = tmp_path / name
        assert main(["sniff", "-o", str(path), "device", "virtual:gh100"]) == 0
        found.append(steps(Decoder(TABLE).all(read(path))))
    assert list(differences(*found)) == []


def test_every_object_our_driver_makes_it_frees(tmp_path: Path) -> None:
    """What is left goes with the client, whose end frees all below it."""
    if nvjitlink.library() is None:
        pytest.skip("nvidia-nvjitlink is not installed")
    path = tmp_path / "calls.jsonl"
    main(["sniff", "-o", str(path), "device", "virtual:gh100"])
    live: set[object] = set()
    for each in Decoder(TABLE).all(read(path)):
        values = each.own.after if each.own else None
        if values and each.title.startswith("RM_ALLOC "):
            live.add(values["hObjectNew"])
        elif values and each.title == "RM_FREE":
            live.discard(values["hObjectOld"])
            if values["hObjectOld"] == values["hRoot"]:
                live.clear()
    assert live == set()


def test_devices_without_a_node_are_refused() -> None:
    with pytest.raises(NotSupported, match="node"):
        node.attach("virtual:navi31")
    for name in ("cpu", "virtual:none", "nvrm:x", "pci:0"):
        with pytest.raises(DeviceNotFound):
            node.attach(name)


def test_a_model_goes_with_its_device(tmp_path: Path) -> None:
    attachment = node.attach("virtual:gh100")
    model = weakref.ref(attachment.chip)
    node.record_device(attachment, "virtual:gh100", tmp_path / "a", "580.142", lambda device: None)
    del attachment
    gc.collect()
    assert model() is None


def test_the_command_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if nvjitlink.library() is None:
        pytest.skip("nvidia-nvjitlink is not installed")
    path = tmp_path / "calls.jsonl"
    assert main(["sniff", "--json", "-o", str(path), "device", "virtual:tu102"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["backend"], told["driver"]) == ("node", "580.142")
