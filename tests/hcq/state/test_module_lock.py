"""What a module builds once is there for all threads, whoever keeps the lock of its making."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ugpu.hcq.cpu import processor
from ugpu.hcq.state.config import Config
from ugpu.hcq.state.life import ModuleLock


def test_native_code_that_is_built_needs_no_lock() -> None:
    built = processor.native()
    found: list[object] = []
    with processor._build_lock.lock:  # as a thread does that was cut off before it released it
        other = threading.Thread(target=lambda: found.append(processor.native()), daemon=True)
        other.start()
        other.join(60)
    assert found == [built]


def test_native_code_is_compiled_once_per_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    compile_object = processor.jit.compile_object

    def compiles(text: str, *levels: int) -> bytes:
        compiled.append(text)
        return compile_object(text, *levels)

    monkeypatch.setattr(processor.jit, "compile_object", compiles)
    monkeypatch.setattr(processor.jit, "kept", lambda make, *inputs: make())  # of earlier runs
    monkeypatch.setattr(processor, "config", lambda: Config(cache_folder=tmp_path))
    assert processor._build().code.address("ugpu_serve")
    (entry,) = (tmp_path / "cpu").iterdir()
    assert processor._build().code.address("ugpu_serve")
    assert len(compiled) == 1
    entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    assert processor._build().code.address("ugpu_serve")
    assert len(compiled) == 2, "a damaged entry is not used"
    source = processor.source
    monkeypatch.setattr(processor, "source", lambda triple: source(triple) + "; another\n")
    assert processor._build().code.address("ugpu_serve")
    assert len(compiled) == 3, "an entry is that of one source"


def test_a_child_of_a_fork_has_a_free_lock() -> None:
    lock = ModuleLock()
    taken: list[bool] = []
    with lock.lock:
        lock.abandon()
        other = threading.Thread(target=lambda: taken.append(lock.lock.acquire(blocking=False)))
        other.start()
        other.join()
    assert taken == [True]
