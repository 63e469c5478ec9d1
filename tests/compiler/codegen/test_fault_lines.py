"""A fault in a kernel of the compiler names the line of its kernel IR."""

from __future__ import annotations

import io
import zlib
from pathlib import Path

import numpy as np
import pytest

from tests.support.compiler.compiler_cases import GFX1100, kernels_of
from ugpu import hcq
from ugpu.compiler.codegen.emit import emitted
from ugpu.compiler.codegen.located import FILE, lines_of_ptx, with_lines
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.compiler.kernel.ir import Kernel
from ugpu.compiler.kernel.text import format_kernel, statement_lines
from ugpu.compiler.runtime.kernels.faulted import Places
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.disk.cache import DiskCache
from ugpu.hcq.errors import PageFault
from ugpu.hcq.objects.source_lines import source_of
from ugpu.hcq.state.target import TargetSpec, ptx_target

elffile = pytest.importorskip("elftools.elf.elffile", reason="pyelftools is not installed")


def product() -> Tensor:
    left = Tensor(np.ones((64, 64), np.float16))
    return (left @ Tensor(np.ones((64, 64), np.float16)) + 1).relu()


def code(image: bytes) -> bytes:
    data: bytes = elffile.ELFFile(io.BytesIO(image)).get_section_by_name(".text").data()
    return data


def located(kernel: Kernel, target: TargetSpec) -> str:
    module = emitted(kernel, target)
    spans = module.lines(statement_lines(kernel))
    return with_lines(module.text, spans, directives=target.abi == "ptx")


def test_line_tables_change_no_instruction_and_name_the_statements() -> None:
    for kernel in kernels_of(product().node, GFX1100):
        plain = compile_text(emitted(kernel, GFX1100).text, GFX1100)
        image = compile_text(located(kernel, GFX1100), GFX1100)
        assert code(image) == code(plain)
        printed = format_kernel(kernel).splitlines()
        statements = set(statement_lines(kernel).values())
        seen = set()
        for offset in range(0, len(code(image)), 48):
            name, _, line = source_of(image, {}, offset).rpartition(":")
            if not name or line == "0":  # an instruction of no statement
                continue
            assert name == FILE
            assert int(line) <= len(printed)
            seen.add(int(line))
        assert len(seen & statements) >= len(statements) // 3  # others share their instructions


def test_directives_change_no_line_of_ptx_and_name_the_statements() -> None:
    target = ptx_target("sm_86")
    for kernel in kernels_of(product().node, target):
        plain = compile_text(emitted(kernel, target).text, target).decode()
        found = lines_of_ptx(compile_text(located(kernel, target), target).decode())
        assert [text for text, _ in found] == plain.splitlines()
        printed, statements = format_kernel(kernel).splitlines(), statement_lines(kernel)
        loads = [line for text, line in found if "cp.async.cg" in text]
        assert loads and all("<- in" in printed[line - 1] for line in loads)
        seen = {line for _, line in found if line}
        assert seen <= set(statements.values())
        assert len(seen) >= len(set(statements.values())) // 3


def faulted(gpu: hcq.Device) -> PageFault:
    # much larger than the results, whose memory may come to lie where this was
    values = Tensor(np.ones((64, 1024), np.float32), device=gpu).contiguous().realize()
    (values @ values.T + 1).relu().numpy()
    values.node.storage.buffer.close()
    gpu.synchronize()
    with pytest.raises(PageFault) as caught:
        (values @ values.T + 1).relu().numpy()
    return caught.value


@pytest.mark.parametrize("name", ["virtual:navi31", "virtual:ga102"])
def test_a_fault_names_the_line_in_this_process_and_in_the_next(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UGPU_CACHE", str(tmp_path))
    for _ in range(2):  # the second takes the kernel from disk
        with hcq.open(name) as gpu:
            fault = faulted(gpu)
        line, _, statement = str(fault.facts["kernel_ir"]).removeprefix("line ").partition(": ")
        assert int(line) > 1
        assert "in0[" in statement


@pytest.mark.parametrize("target", [GFX1100, ptx_target("sm_86")], ids=lambda each: each.name)
def test_text_that_cannot_be_used_hides_nothing(target: TargetSpec, tmp_path: Path) -> None:
    (kernel,) = kernels_of(Tensor(np.ones(4096, np.float32)).exp().node, target)
    disk = DiskCache(tmp_path)
    places = Places(target, disk)
    module = emitted(kernel, target)
    image = compile_text(module.text, target)
    at = {"offset": 32}
    if target.abi == "ptx":
        lines = image.decode().splitlines()
        at = {"ptx_line": 1 + next(n for n, line in enumerate(lines) if "ld.global" in line)}
        disk.put("key".ljust(64, "0"), image)
    fault = PageFault("a read faulted", kernel=kernel.name, **at)
    assert places.explain(fault) == {}  # a program of the user's
    key = places.keys[kernel.name] = "key".ljust(64, "0")
    assert places.explain(fault) == {}  # compiled before texts were kept
    places.keep(kernel, key, module)
    assert ": out[" in str(places.explain(fault)["kernel_ir"])
    assert places.source(key) == format_kernel(kernel)
    no_module = b'{"text": "define", "spans": []}'
    texts = (b"\xff", b"define nothing", b"{}", no_module)
    for damaged in (b"", *map(zlib.compress, texts)):
        disk.put(DiskCache.key("kernel ir", key), damaged)
        assert places.explain(fault) == {}
    for facts in ({"offset": None, "ptx_line": None}, {"offset": -1, "ptx_line": 10**6}):
        assert places.explain(PageFault("a read faulted", kernel=kernel.name, **facts)) == {}


def test_ptx_other_than_what_was_loaded_names_no_line(tmp_path: Path) -> None:
    target = ptx_target("sm_86")
    (kernel,) = kernels_of(Tensor(np.ones(4096, np.float32)).exp().node, target)
    disk, key = DiskCache(tmp_path), "k".ljust(64, "0")
    places = Places(target, disk)
    places.keys[kernel.name] = key
    places.keep(kernel, key, emitted(kernel, target))
    fault = PageFault("a read faulted", kernel=kernel.name, ptx_line=30)
    assert places.explain(fault) == {}  # the object has left the cache
    disk.put(key, b".version 7.1\n")
    assert places.explain(fault) == {}
