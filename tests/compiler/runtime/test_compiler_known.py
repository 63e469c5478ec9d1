"""A second process lowers nothing that the cache folder knows, and believes nothing damaged."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from ugpu import compiler, hcq
from ugpu.compiler import Tensor
from ugpu.compiler.kernel.choices import Packing
from ugpu.compiler.runtime.kernels import programs
from ugpu.compiler.runtime.kernels.known import FOLDER, Known, Record, states
from ugpu.compiler.runtime.kernels.store import Store
from ugpu.compiler.runtime.runtime import kernel_log, use_cache
from ugpu.compiler.schedule.group import Group
from ugpu.hcq.device.device import Device
from ugpu.hcq.disk.cache import DiskCache

VALUES = np.linspace(-1, 1, 24 * 16, dtype="f4").reshape(24, 16)


def work(device: Device) -> np.ndarray:
    x = Tensor(VALUES, device=device)
    return ((x @ x.transpose(0, 1)).softmax() + x.sum()).numpy()


def forbid(patch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a known kernel is lowered again")

    patch.setattr(programs, "lower", fail)
    patch.setattr(programs, "emitted", fail)


@pytest.mark.parametrize("name", ["cpu", "virtual:navi31", "virtual:gh100"])
def test_a_second_process_lowers_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hcq.open(name) as device:
        use_cache(device, tmp_path / "kernels")
        with kernel_log() as before:
            wanted = work(device)
        forbid(monkeypatch)
        use_cache(device, tmp_path / "kernels")
        with kernel_log() as after:
            assert np.array_equal(work(device), wanted)
    assert [(r.name, r.origin) for r in after] == [(r.name, r.origin) for r in before]
    assert all(record.from_disk for record in after)


def test_other_sources_and_searches_make_records_void(
    cpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []
    get = Known.get
    monkeypatch.setattr(Known, "get", lambda self, group: found.append(r := get(self, group)) or r)
    runtime = use_cache(cpu, tmp_path / "kernels")
    work(cpu)
    assert not any(found)
    found.clear()
    runtime.programs.tuned.put(DiskCache.key("some search"), Packing(False))
    runtime = use_cache(cpu, tmp_path / "kernels")
    work(cpu)
    assert found
    assert not any(found)
    found.clear()
    monkeypatch.setattr(
        "ugpu.compiler.runtime.kernels.known.state", lambda: DiskCache.key("other files")
    )
    monkeypatch.setattr("ugpu.compiler.runtime.kernels.known.sources", lambda: "others")
    use_cache(cpu, tmp_path / "kernels")
    work(cpu)
    assert found
    assert not any(found)


def test_sources_are_read_once_for_the_state_of_their_files(
    cpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(
        "ugpu.compiler.runtime.kernels.known.sources", lambda: read.append("") or "hash"
    )
    disk = DiskCache(tmp_path / "kernels")
    for _ in range(2):
        assert Known(cpu.target, disk, Store(None))._sources() == "hash"
    assert len(read) == 1
    monkeypatch.setattr(
        "ugpu.compiler.runtime.kernels.known.state", lambda: DiskCache.key("other files")
    )
    assert Known(cpu.target, disk, Store(None))._sources() == "hash"
    assert len(read) == 2


def test_the_sources_are_those_of_the_whole_compiler() -> None:
    assert Path(compiler.__file__).parent == FOLDER
    assert (FOLDER / "kernel" / "lower.py").is_file()


def test_a_change_of_a_source_changes_the_state(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    source = tmp_path / "part" / "one.py"
    source.write_text("a = 1")
    (tmp_path / "other").write_text("no source")
    (before,) = states(tmp_path)
    assert before.startswith(f"{source} 5 ")
    content = source.stat()
    source.write_text("a = 2")
    os.utime(source, ns=(content.st_atime_ns, content.st_mtime_ns))
    (after,) = states(tmp_path)
    assert after.split()[:3] == before.split()[:3]
    assert after != before


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"grid": [1]}', b'{"grid": [1, 1, 1], "block": 1}']
)
def test_a_record_that_is_not_understood_is_made_again(
    content: bytes, cpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cache(cpu, tmp_path / "kernels")
    with monkeypatch.context() as patch:

        def put(self: Known, group: Group, record: Record) -> None:
            key = self._key(group)
            assert key is not None
            self._disk.put(key, content)

        patch.setattr(Known, "put", put)
        wanted = work(cpu)
    use_cache(cpu, tmp_path / "kernels")
    assert np.array_equal(work(cpu), wanted)
    forbid(monkeypatch)
    use_cache(cpu, tmp_path / "kernels")
    assert np.array_equal(work(cpu), wanted)


def test_a_record_without_its_object_is_no_use(cpu: Device, tmp_path: Path) -> None:
    runtime = use_cache(cpu, tmp_path / "kernels")
    wanted = work(cpu)
    for record in runtime.programs._kernels:
        runtime.programs.disk.forget(record)
    use_cache(cpu, tmp_path / "kernels")
    assert np.array_equal(work(cpu), wanted)
