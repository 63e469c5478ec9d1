"""Objects of Debian's clang for gfx1100 and gfx1201 with recursion, calls through pointers and
virtual functions, on the virtual Navi31 and Navi48; skipped without a clang that compiles for them.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ugpu import hcq
from ugpu.am.device.device import AmDevice

NAMES = [f"clang-{version}" for version in range(20, 14, -1)]  # 15 was the first with gfx1100
CLANG = next((path for name in NAMES if (path := shutil.which(name))), None)
TARGET = ["--target=amdgcn-amd-amdhsa", "-nogpulib", "-O2"]
CARDS = {"navi31": "gfx1100", "navi48": "gfx1201"}
pytestmark = [
    pytest.mark.foreign,
    pytest.mark.skipif(CLANG is None, reason="no clang-15 to clang-20: apt-get install clang-16"),
]
SOURCE = """
typedef unsigned int u32;
#define KERNEL extern "C" __attribute__((amdgpu_kernel, visibility("protected"))) void
#define OWN __attribute__((noinline))
static inline u32 lane() { return __builtin_amdgcn_workitem_id_x(); }

OWN u32 fibonacci(u32 n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
OWN u32 even(u32 n);
OWN u32 odd(u32 n) { return n ? even(n - 1) : 0; }
OWN u32 even(u32 n) { return n ? odd(n - 1) : 1; }

OWN u32 add(u32 a, u32 b) { return a + b; }
OWN u32 multiply(u32 a, u32 b) { return a * b; }
OWN u32 ackermann(u32 m, u32 n) {
  return m ? ackermann(m - 1, n ? ackermann(m, n - 1) : 1) : n + 1;
}
typedef u32 (*Binary)(u32, u32);

KERNEL recursion(u32 *out) { out[lane()] = fibonacci(lane() % 12); }
KERNEL mutual(u32 *out) { out[lane()] = even(lane()) * 2 + odd(lane()); }
KERNEL pointers(u32 *out, u32 choice) {
  Binary table[3] = {add, multiply, ackermann};
  out[lane()] = table[(lane() + choice) % 3](lane() % 3, 3);
}
"""


def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def ackermann(m: int, n: int) -> int:
    if not m:
        return n + 1
    return ackermann(m - 1, ackermann(m, n - 1) if n else 1)


@pytest.fixture(scope="module", params=CARDS)
def card(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def image(card: str, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    assert CLANG is not None
    folder: Path = tmp_path_factory.mktemp("clang")
    source, result = folder / "calls.cpp", folder / "calls.o"
    source.write_text(SOURCE, encoding="utf-8")
    command = [CLANG, *TARGET, f"-mcpu={CARDS[card]}", "-c", str(source), "-o", str(result)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    unknown = ("unable to create target", "unknown target", "invalid target ID")
    if any(text in done.stderr for text in unknown):
        pytest.skip(f"{CLANG} does not compile for {CARDS[card]}")
    assert done.returncode == 0, done.stderr
    return result.read_bytes()


def test_recursion_and_calls_through_pointers(card: str, image: bytes) -> None:
    lanes = range(64)
    binary = (lambda a, b: a + b, lambda a, b: a * b, ackermann)
    with hcq.open(f"virtual:{card}") as device, device.alloc(256) as out:
        assert isinstance(device, AmDevice)
        device.dynamic_stack = 16 << 10
        with device.load(image) as program:
            for name, more, expected in (
                ("recursion", (), [fibonacci(n % 12) for n in lanes]),
                ("mutual", (), [2 * (n % 2 == 0) + n % 2 for n in lanes]),
                ("pointers", (np.uint32(1),), [binary[(n + 1) % 3](n % 3, 3) for n in lanes]),
            ):
                device.queue().launch(program[name], grid=(1,), block=(64,),
                                      args=(out, *more)).submit()  # fmt: skip
                device.synchronize()
                assert out.numpy(np.uint32).tolist() == expected, name
