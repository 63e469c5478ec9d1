"""A fault in a kernel of the compiler names the line of its kernel IR."""

from __future__ import annotations

import io
import zlib
from pathlib import Path

import numpy as np
import pytest

import hcq
from compiler.codegen.emit import emit
from compiler.codegen.located import FILE, statement_of
from compiler.codegen.objects import compile_text
from compiler.kernel.text import format_kernel, statement_lines
from compiler.runtime.faulted import Places
from compiler.tensor import Tensor
from hcq.diskcache import DiskCache
from hcq.errors import PageFault
from hcq.sourcelines import source_of
from tests.support.compiler_cases import GFX1100, kernels_of

elffile = pytest.importorskip("elftools.elf.elffile", reason="pyelftools is not installed")


def product() -> Tensor:
    left = Tensor(np.ones((64, 64), np.float16))
    return (left @ Tensor(np.ones((64, 64), np.float16)) + 1).relu()


def code(image: bytes) -> bytes:
    data: bytes = elffile.ELFFile(io.BytesIO(image)).get_section_by_name(".text").data()
    return data


def test_line_tables_change_no_instruction_and_name_the_statements() -> None:
    for kernel in kernels_of(product().node, GFX1100):
        plain = compile_text(emit(kernel, GFX1100), GFX1100)
        text = emit(kernel, GFX1100, lines=True)
        image = compile_text(text, GFX1100)
        assert code(image) == code(plain)
        printed = format_kernel(kernel).splitlines()
        statements = set(statement_lines(kernel).values())
        seen = set()
        for offset in range(0, len(code(image)), 48):
            name, _, line = source_of(image, {}, offset).rpartition(":")
            if not name or line == "0":  # an instruction of no statement
                continue
            assert name == FILE
            assert statement_of(text, int(line)) == printed[int(line) - 1].strip()
            seen.add(int(line))
        assert len(seen & statements) >= len(statements) // 3  # others share their instructions
    assert statement_of(text, 0) == statement_of(text, 10**6) == ""


def faulted(gpu: hcq.Device) -> PageFault:
    values = Tensor(np.ones((64, 64), np.float32), device=gpu).contiguous().realize()
    (values @ values + 1).relu().numpy()
    values.node.storage.buffer.close()
    gpu.synchronize()
    with pytest.raises(PageFault) as caught:
        (values @ values + 1).relu().numpy()
    return caught.value


def test_a_fault_names_the_line_in_this_process_and_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UGPU_CACHE", str(tmp_path))
    for _ in range(2):  # the second takes the kernel from disk
        with hcq.open("virtual:navi31") as gpu:
            fault = faulted(gpu)
        line, _, statement = str(fault.facts["kernel_ir"]).removeprefix("line ").partition(": ")
        assert int(line) > 1
        assert "in0[" in statement


def test_text_that_cannot_be_used_hides_nothing(tmp_path: Path) -> None:
    (kernel,) = kernels_of(Tensor(np.ones(4096, np.float32)).exp().node, GFX1100)
    places = Places(GFX1100, DiskCache(tmp_path))
    fault = PageFault("a read faulted", kernel=kernel.name, offset=32)
    assert places.explain(fault) == {}  # a program of the user's
    places.keys[kernel.name] = "key"
    assert places.explain(fault) == {}  # compiled before texts were kept
    places.keep(kernel, "key")
    assert str(places.explain(fault)["kernel_ir"]).startswith("line ")
    for damaged in (b"", zlib.compress(b"\xff"), zlib.compress(b"define nothing")):
        DiskCache(tmp_path).put(DiskCache.key("lines", "key"), damaged)
        assert places.explain(fault) == {}
    assert places.explain(PageFault("a read faulted", kernel=kernel.name, offset=None)) == {}
