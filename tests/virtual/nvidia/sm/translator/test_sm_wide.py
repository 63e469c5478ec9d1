"""Registers, accesses and atomics of 128 bits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.nvidia.sm.sm_run import HEAD, Bench, body
from ugpu.hcq.errors import BadCodeObject
from ugpu.nv.code.assemble import assemble, find_library
from ugpu.virtual.nvidia.sm_contract import SmEnding

_REGISTERS = ".reg .b128 %q<8>; mul.wide.u32 %at, %t, 16; add.s64 %rd10, %rd0, %at;"
MOVES = f"""{_REGISTERS}
add.s64 %rd11, %rd1, %at;
ld.global.b128 %q0, [%rd10];
mov.b128 {{%rd20, %rd21}}, %q0;
mov.b128 %q1, {{%rd21, %rd20}};
setp.lt.u32 %p1, %t, 20;
mov.b128 {{%r1, %r2, %r3, %r4}}, %q1;
not.b32 %r2, %r2;
@%p1 mov.b128 %q1, {{%r1, %r2, %r3, %r4}};
bar.sync 0;
st.shared.b128 [part], %q1;
ld.shared.b128 %q2, [part];
mov.b128 %q3, %q1;
st.global.b128 [%rd11], %q3;
st.global.b128 [%rd11+512], %q2;
"""
LOCKED = f"""{_REGISTERS}
mov.u32 %r9, 0;
mov.u64 %rd30, 1;
again:
ld.relaxed.gpu.global.b128 %q1, [%rd0];
retry:
mov.b128 {{%rd20, %rd21}}, %q1;
add.s64 %rd22, %rd20, 1;
sub.s64 %rd23, %rd21, 3;
mov.b128 %q2, {{%rd22, %rd23}};
atom.global.cas.b128 %q3, [%rd0], %q1, %q2;
mov.b128 {{%rd24, %rd25}}, %q3;
setp.ne.u64 %p1, %rd24, %rd20;
setp.ne.or.u64 %p2, %rd25, %rd21, %p1;
mov.b128 %q1, %q3;
@%p2 bra retry;
add.u32 %r9, %r9, 1;
setp.lt.u32 %p3, %r9, 5;
@%p3 bra again;
"""
SWAPPED = f"""{_REGISTERS}
mov.b128 %q1, {{%tw, %tw}};
atom.exch.b128 %q2, [%rd0+32], %q1;
add.s64 %rd11, %rd1, %at;
st.global.b128 [%rd11], %q2;
"""


def test_registers_are_put_together_moved_and_taken_apart() -> None:
    bench = Bench()
    content = np.random.default_rng(2).integers(0, 1 << 32, (32, 4), np.uint32)
    source, _ = bench.array(content)
    target, out = bench.array(np.zeros((64, 4), np.uint32))
    bench.good(body(2, MOVES, ".shared .align 16 .b8 part[16];"), source, target, shared=16)
    wanted = content[:, [2, 3, 0, 1]].copy()
    wanted[:20, 1] = ~wanted[:20, 1]
    assert np.array_equal(out[:32], wanted)
    assert (out[32:] == out[32]).all() and (out[32] == wanted).all(axis=1).any()


@pytest.mark.parametrize("workers", [1, 2])
def test_compare_and_swap_loses_nothing(workers: int) -> None:
    bench = Bench(workers)
    start = (1 << 64) - 100, 7
    address, both = bench.array(np.array(start, np.uint64))
    bench.good(body(1, LOCKED), address, grid=(6,), block=(64,))
    count = 6 * 64 * 5
    assert int(both[0]) == (start[0] + count) % (1 << 64)
    assert int(both[1]) == (start[1] - 3 * count) % (1 << 64)


def test_an_exchange_hands_each_value_on_once() -> None:
    bench = Bench()
    address, place = bench.array(np.arange(100, 108, dtype=np.uint64))
    target, out = bench.array(np.zeros((40, 2), np.uint64))
    bench.good(body(2, SWAPPED), address, target, block=(40,))
    seen = [tuple(map(int, row)) for row in out] + [tuple(map(int, place[4:6]))]
    assert sorted(seen) == [(n, n) for n in range(40)] + [(104, 105)]
    assert place[:4].tolist() == [100, 101, 102, 103] and place[6:].tolist() == [106, 107]


def test_an_address_that_is_no_multiple_of_16_is_a_fault() -> None:
    bench = Bench()
    address, _ = bench.array(np.zeros(8, np.uint64))
    text = f"{_REGISTERS} ld.global.b128 %q1, [%rd10+8]; st.global.b128 [%rd10], %q1;"
    assert bench.launch(body(1, text), address).ending is SmEnding.MISALIGNED_ADDRESS


def test_sm_80_has_no_atomics_of_128_bits() -> None:
    with pytest.raises(BadCodeObject, match=r"atom.*expected .target sm_90 or higher, got sm_80"):
        Bench().launch(body(2, SWAPPED), 0x1000, 0x1000, target="sm_80")


def test_the_kernels_of_these_tests_are_ptx_that_assembles() -> None:
    if find_library() is None:
        pytest.skip("needs the nvidia-nvjitlink package")
    text = HEAD.format(target="sm_90") + ".shared .align 16 .b8 part[16];\n"
    for number, (count, one) in enumerate(((2, MOVES), (1, LOCKED), (2, SWAPPED))):
        text += body(count, one).replace("entry k(", f"entry k{number}(")
    assert assemble(text.encode(), "sm_90")
