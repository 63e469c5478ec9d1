"""printf and assert of kernels: what is printed arrives as C would format it; asserts are named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from tests.support.nvidia.nv_machine import opened, powered, work
from ugpu.hcq.errors import AssertionFailed, NotSupported
from ugpu.nv.code import output
from ugpu.nv.code.assemble import assemble
from ugpu.nv.code.cubin import Cubin, Section, Symbol
from ugpu.nv.code.image import Image
from ugpu.nv.code.output_routines import STATE, with_routines
from ugpu.nv.device.device import NvDevice
from ugpu.nv.device.driver import NvDriver
from ugpu.nv.rm.memory import Memory
from ugpu.virtual.nvidia.node import VirtualNode

# As nvcc and LLVM declare and call them: arguments in a structure on the stack.
PTX = """
.version {version}
.target {target}
.address_size 64
.extern .func  (.param .b32 func_retval0) vprintf
(
  .param .b64 vprintf_param_0,
  .param .b64 vprintf_param_1
)
;
.extern .func __assertfail
(
  .param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e
) .noreturn;
.global .align 1 .b8 form[] = {form};
.global .align 1 .b8 word[] = {{119, 111, 114, 100, 0}};
.global .align 1 .b8 file[] = {{107, 46, 99, 117, 0}};
.visible .entry say(.param .u64 unused)
{{
  .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .f64 %d<2>; .local .align 8 .b8 list[48];
  mov.u32 %r1, %tid.x; add.u32 %r1, %r1, 40; st.local.u32 [list], %r1;
  mov.f64 %d1, 0d4004000000000000; st.local.f64 [list+8], %d1;
  mov.u64 %rd1, word; cvta.global.u64 %rd1, %rd1; st.local.u64 [list+16], %rd1;
  mov.u64 %rd2, -5; st.local.u64 [list+24], %rd2; mov.u32 %r2, 255; st.local.u32 [list+32], %r2;
  mov.u64 %rd3, list; cvta.local.u64 %rd3, %rd3; mov.u64 %rd4, form; cvta.global.u64 %rd4, %rd4;
  {{ .param .b64 p0; .param .b64 p1; .param .b32 q; st.param.b64 [p0], %rd4;
    st.param.b64 [p1], %rd3; call.uni (q), vprintf, (p0, p1); ld.param.b32 %r3, [q]; }}
  ret;
}}
.visible .entry check(.param .u32 limit)
{{
  .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .pred %p;
  ld.param.u32 %r1, [limit]; mov.u32 %r2, %tid.x; setp.lt.u32 %p, %r2, %r1; @%p bra GOOD;
  mov.u64 %rd1, word; cvta.global.u64 %rd1, %rd1; mov.u64 %rd2, file; cvta.global.u64 %rd2, %rd2;
  {{ .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
    st.param.b64 [a], %rd1; st.param.b64 [b], %rd2; st.param.b32 [c], 17; st.param.b64 [d], %rd1;
    st.param.b64 [e], 1; call.uni __assertfail, (a, b, c, d, e); }}
GOOD: ret;
}}
"""
FORM = "%d [%6.2f] %s %lld %#x 100%%\n"


def text(device: NvDevice, form: str = FORM) -> bytes:
    target = device.target.cpu
    version = "8.7" if int(target[3:].rstrip("a")) >= 100 else "8.0"
    values = ", ".join(str(byte) for byte in form.encode() + b"\0")
    return PTX.format(version=version, target=target, form="{" + values + "}").encode()


def listening(device: NvDevice) -> list[str]:
    said: list[str] = []
    device.on_print = said.append  # type: ignore[method-assign]
    return said


def say(device: NvDevice, threads: int, form: str = FORM) -> list[str]:
    said = listening(device)
    with device.load(text(device, form)) as program, device.alloc(64) as unused:
        with device.queue() as queue:
            queue.launch(program["say"], grid=(1,), block=(threads,), args=(unused,))
        device.synchronize()
    return said


@pytest.mark.parametrize("chip", ["tu102", "gh100", "gb202"])
def test_what_kernels_print_arrives(chip: str) -> None:
    with powered(chip) as machine, opened(machine) as device:
        expected = [f"{40 + n} [  2.50] word -5 0xff 100%\n" for n in range(40)]
        assert sorted(say(device, 40)) == expected
        assert sorted(say(device, 3)) == expected[:3], "the buffer starts anew"
        work(device)


def test_it_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        powered() as machine,
        opened(machine) as device,
        device.load(text(device)) as program,
        device.alloc(64) as unused,
    ):
        with device.queue() as queue:
            queue.launch(program["say"], grid=(1,), block=(1,), args=(unused,))
        device.synchronize()
    assert capsys.readouterr().out == "40 [  2.50] word -5 0xff 100%\n"


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("nothing\n", "nothing\n"),
        ("%5d|%-8.3e|%.2s|%lu|%o", "   40|2.500e+00|wo|18446744073709551611|377"),
        ("%c %g %p %zd %X", "( 2.5 {} -5 FF"),
        ("%", "%"),
        ("%q", "%q"),
    ],
)
def test_formats(form: str, expected: str) -> None:
    with powered() as machine, opened(machine) as device:
        (found,) = say(device, 1, form)
    before, _, after = expected.partition("{}")
    assert found.startswith(before) and found.endswith(after)
    assert "{}" in expected or found == expected


def test_what_does_not_fit_is_counted() -> None:
    with powered() as machine, opened(machine) as device:
        said = listening(device)
        with device.load(text(device)) as program, device.alloc(64) as unused:
            with device.queue() as queue:
                queue.launch(program["say"], grid=(20,), block=(1024,), args=(unused,))
            device.synchronize()
        assert 0 < len(said) - 1 < 20 * 1024
        assert said[-1] == f"[{20 * 1024 - len(said) + 1} lines more did not fit the buffer]\n"


@pytest.mark.parametrize("chip", ["tu102", "gh100"])
def test_an_assert_names_its_place(chip: str) -> None:
    with powered(chip) as machine, opened(machine) as device:
        program = device.load(text(device))
        for limit in (64, 63):
            with device.queue() as queue:
                queue.launch(program["check"], grid=(1,), block=(64,), args=(np.uint32(limit),))
            if limit == 64:
                device.synchronize()
        with pytest.raises(AssertionFailed, match=r"check: k\.cu:17: word: block \(0, 0, 0\)") as e:
            device.synchronize()
        assert e.value.facts["thread"] == (63, 0, 0)
        assert "`word` failed" in str(e.value)
        device.reset()
        assert len(say(device, 2)) == 2
        work(device)


@pytest.fixture
def machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver loads machine code, as on a board."""
    monkeypatch.setattr(VirtualNode, "code", "")


class Reachable:
    """Memory that the host reaches, without a GPU."""

    address = 0x7000_0000

    def __init__(self, *_: object) -> None:
        self.view = memoryview(bytearray(output.SIZE))


@pytest.mark.parametrize(("offset", "value"), [(64, 0), (64, 24), (0, 40)])
def test_the_buffers_address_is_linked_behind_other_variables(
    monkeypatch: pytest.MonkeyPatch, offset: int, value: int
) -> None:
    monkeypatch.setattr(output, "allocate_reachable", Reachable)
    sections = tuple(
        Section(number, ".nv.global.init", 1, 0, 64, 8, 0, 0, bytes(64)) for number in range(3)
    )
    symbols = (Symbol("other", 8, 8, 2, False), Symbol(STATE, value, 8, 2, False))
    image = Image(Cubin((9, 0), False, {}, sections, symbols, ()), b"", offsets={2: offset})
    memory = cast(Memory, Reachable())
    driver = cast(NvDriver, SimpleNamespace(gpu=None))
    data = bytes(range(128))
    linked = output.Output(driver).connect(image, memory, data)
    at = offset + value
    assert linked[at : at + 8] == Reachable.address.to_bytes(8, "little")
    assert linked[:at] == data[:at] and linked[at + 8 :] == data[at + 8 :]


@pytest.mark.usefixtures("machine_code")
@pytest.mark.parametrize("name", ["malloc", "free"])
def test_a_heap_is_not_there_for_cubins(name: str) -> None:
    result = "(.param .b64 r) " if name == "malloc" else ""
    call = "(q), malloc" if name == "malloc" else "free"
    ptx = (
        ".version 8.0\n.target sm_90\n.address_size 64\n"
        f".extern .func {result}{name} (.param .b64 n);\n"
        ".visible .entry k(.param .u64 out) { .param .b64 p; .param .b64 q; st.param.b64 [p], 64; "
        f"call.uni {call}, (p); ret; }}\n"
    ).encode()
    with powered() as machine, opened(machine) as device:
        with pytest.raises(
            NotSupported, match=f"calls {name}, a routine that CUDA's driver supplies"
        ):
            device.load(assemble(ptx, "sm_90a"))
        work(device)


@pytest.mark.usefixtures("machine_code")
def test_a_cubin_cannot_be_given_routines() -> None:
    with powered() as machine, opened(machine) as device:
        cubin = assemble(text(device), "sm_90a")
        with pytest.raises(NotSupported, match="needs the program as PTX"):
            device.load(cubin)


_BULK = """
.version 8.7
.target sm_120
.address_size 64
.visible .entry k(.param .u64 from, .param .u64 to)
{{ .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .pred %p; .shared .align 128 .b8 s[256];
  .shared .align 8 .b64 m;
  ld.param.u64 %rd1, [from]; ld.param.u64 %rd2, [to]; mov.u32 %r0, s; mov.u32 %r1, m; {more}
  mov.u32 %r2, %tid.x; setp.ne.u32 %p, %r2, 0; @%p bra WAIT;
  mbarrier.init.shared.b64 [%r1], 1; fence.proxy.async;
  mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 256;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%rd1], 256, [%r1];
WAIT: bar.sync 0;
AGAIN: mbarrier.try_wait.parity.shared.b64 %p, [%r1], 0; @!%p bra AGAIN;
  shl.b32 %r3, %r2, 2; add.u32 %r3, %r3, %r0; ld.shared.u32 %r4, [%r3];
  mul.wide.u32 %rd3, %r2, 4; add.s64 %rd2, %rd2, %rd3; st.global.u32 [%rd2], %r4; ret; }}
"""


def test_cp_async_bulk_of_sm_120() -> None:
    """A copy to the group's own memory runs; one that may go to another's is refused."""
    given = np.arange(64, dtype=np.uint32)
    with powered("gb202") as machine, opened(machine) as device:
        with (
            device.load(_BULK.format(more="").encode()) as program,
            device.alloc(256) as source,
            device.alloc(256) as target,
        ):
            source.copy_from(given)
            queue = device.queue()
            queue.launch(program["k"], grid=(1,), block=(64,), args=(source, target)).submit()
            device.synchronize()
            assert np.array_equal(target.numpy(np.uint32), given)
        reason = r"cp\.async\.bulk is made of it for sm_120"
        with pytest.raises(NotSupported, match=reason):
            device.load(_BULK.format(more="mapa.shared::cluster.u32 %r5, %r0, 0;").encode())


def test_what_was_printed_last_is_told_at_close() -> None:
    with powered() as machine, opened(machine) as device:
        said = listening(device)
        program, unused = device.load(text(device)), device.alloc(64)
        queue = device.queue().launch(program["say"], grid=(1,), block=(1,), args=(unused,))
        queue.timeline.wait(queue.submit())
        assert not said
        device.close()
        assert len(said) == 1


def test_texts_without_such_calls_stay_as_they_are() -> None:
    text_ = b".version 8.0\n.extern .func other(.param .b64 x);\n// vprintf\n"
    assert with_routines(text_) is text_ or with_routines(text_) == text_
