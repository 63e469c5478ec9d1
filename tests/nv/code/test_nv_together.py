"""Kernels of a model that are assembled as one module: each gets its own part, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.nvidia.nv_ptx import full
from ugpu import hcq
from ugpu.hcq.errors import BadCodeObject
from ugpu.hcq.state.config import setting
from ugpu.nv.code.assemble import QUICK
from ugpu.nv.code.image import lay_out
from ugpu.nv.code.source import assemble_together, read_source

GPU = (9, 0)
HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"
ENTRY = """
.visible .entry {name}(
\t.param .u64 .ptr .global .align 256 {name}_0
)
.reqntid {threads}, 1, 1
{{
\t.reg .b64 %rd<3>;
\t.reg .b32 %r<3>;
\t.shared .align 64 .b8 {name}_shared[{shared}];
\tmov.u32 %r1, %tid.x;
\tld.param.b64 %rd1, [{name}_0];
\tmad.wide.u32 %rd2, %r1, 4, %rd1;
\tmov.b32 %r2, {value};
\tst.global.b32 [%rd2], %r2;
$L__BB0_1:
\tret;
}}
"""


def text(name: str, value: int = 1, threads: int = 32, shared: int = 128) -> bytes:
    entry = ENTRY.format(name=name, value=value, threads=threads, shared=shared)
    return f"// made by hand\n{HEADER}{entry}".encode()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    with setting("UGPU_CACHE", str(tmp_path)), setting("UGPU_TIERS", "1"):
        yield tmp_path


def test_each_text_gets_its_kernel_as_if_assembled_alone() -> None:
    texts = [text("one", threads=32, shared=128), text("two", threads=64, shared=4096)]
    together = assemble_together(texts, GPU, QUICK)
    assert set(together) == set(texts)
    for data in texts:
        joined = read_source(data, GPU, QUICK, together)
        alone = read_source(data, GPU, QUICK)
        assert joined.cubin is together[data]
        assert joined.ptx == alone.ptx == data
        (name,) = joined.cubin.kernels
        ours, theirs = joined.cubin.kernels[name], alone.cubin.kernels[name]
        for fact in ("max_threads", "parameters_at", "parameters_size", "barriers", "registers"):
            assert getattr(ours, fact) == getattr(theirs, fact), fact
        assert joined.arguments(name) == alone.arguments(name)
        texts_of = [s for s in joined.cubin.sections if s.name.startswith(".text.")]
        assert [s.name for s in texts_of] == [f".text.{name}"]
        image = lay_out(joined.cubin, joined.ptx)
        assert image.size <= lay_out(alone.cubin, alone.ptx).size + 4096


def test_only_texts_that_can_share_a_module_are_joined() -> None:
    kernels = [text("one"), text("two")]
    variable = HEADER.encode() + b".global .align 4 .b32 g;\n" + text("three")[len(HEADER) + 16 :]
    newer = text("four").replace(b".version 8.0", b".version 8.1")
    assert set(assemble_together([*kernels, variable, newer], GPU, QUICK)) == set(kernels)
    assert assemble_together([kernels[0]], GPU, QUICK) == {}
    assert assemble_together([full("sm_90"), kernels[0]], GPU, QUICK) == {}


def test_an_invalid_text_is_reported_when_it_is_loaded() -> None:
    wrong = text("two").replace(b"st.global.b32", b"st.nowhere.b32")
    assert assemble_together([text("one"), wrong], GPU, QUICK) == {}
    with pytest.raises(BadCodeObject, match="nowhere"):
        read_source(wrong, GPU, QUICK)
    assert assemble_together([text("one"), b"no PTX", text("two")], GPU, QUICK).keys() == {
        text("one"), text("two")
    }  # fmt: skip


def test_a_model_runs_kernels_that_were_assembled_together(cache: Path) -> None:
    texts = [text(f"kernel{value}", value) for value in (3, 5, 7)]
    with hcq.open("virtual:gh100") as device:
        device.driver.foresee(texts)
        found = np.zeros(32, np.uint32)
        for value, data in zip((3, 5, 7), texts, strict=True):
            kernel = device.load(data)[f"kernel{value}"]
            out = device.alloc(128)
            with device.queue() as queue:
                queue.launch(kernel, grid=(1,), block=(32,), args=(out,))
            device.synchronize()
            out.copy_to(found)
            assert (found == value).all()
    assert len(list((cache / "cubins").iterdir())) == 1
