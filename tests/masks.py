"""Run the tests of generated host code again without some of the processor's instruction sets.

    python -m tests.masks [--turn] [PYTEST ARGUMENT ...]      default: those in TESTS

Each mask that takes something away from this processor gives one run of pytest; the others are
listed as skipped, with the reason. --turn: of the masks that could run, only the one whose turn it
is by the commit's number, as continuous integration does. Results must not depend on what a host
has: a test that passes on one x86-64 processor passes on all. Exit code: 0 when all runs passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from numpy._core._multiarray_umath import __cpu_dispatch__ as NUMPY_DISPATCH

from tests import costs
from tests.changed import Checkout
from ugpu.hcq.state.host import features

#: mask -> beginnings of LLVM's feature names, and of NumPy's dispatch targets, that it takes away
MASKS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "AVX2 only": (("avx512", "avx10", "amx"), ("X86_V4", "AVX512")),
    "AVX-512 without FP16 and BF16": (("avx512fp16", "avx512bf16", "amx"), ("AVX512_SPR",)),
    "AVX-512 without FP16": (("avx512fp16", "amx"), ("AVX512_SPR",)),
    "without AMX": (("amx",), ()),
}
#: where code for the host is generated, by either shader core's translator or the compiler
TESTS = (
    "tests/virtual/amd/isa",
    "tests/virtual/nvidia/sm",
    "tests/virtual/adreno/sp",
    "tests/compiler/numeric/test_compiler_accuracy.py",
    "tests/compiler/methods/test_compiler_elementwise.py",
    "tests/compiler/kernel/host/products/test_compiler_products.py",
    "tests/compiler/schedule/test_compiler_chain.py",
    "tests/compiler/kernel/host/test_compiler_convolution.py",
    "tests/compiler/kernel/host/test_compiler_winograd.py",
    "tests/compiler/kernel/host/products/test_compiler_amx.py",
    "tests/compiler/test_operation_corpus.py",
)


def settings(mask: str) -> dict[str, str]:
    """Return the environment variables that put a mask in place."""
    llvm, numpy = MASKS[mask]
    names = [name for name in NUMPY_DISPATCH if name.startswith(numpy)] if numpy else []
    return {"UGPU_HOST_WITHOUT": ",".join(llvm), "NPY_DISABLE_CPU_FEATURES": " ".join(names)}


def to_run(present: Mapping[str, bool]) -> dict[str, str]:
    """Return mask -> "" where it changes this processor in a way of its own, else why it is
    skipped."""
    everything = frozenset(name for name, on in present.items() if on)
    seen = {everything: "all of the processor's instruction sets"}
    found = {}
    for mask, (beginnings, _) in MASKS.items():
        left = frozenset(name for name in everything if not name.startswith(beginnings))
        found[mask] = f"the same as {seen[left]!r} on this processor" if left in seen else ""
        seen.setdefault(left, mask)
    return found


def in_turn(masks: Mapping[str, str], number: int) -> dict[str, str]:
    """The same with all masks skipped but one: the one of the commit with this number."""
    able = [mask for mask, reason in masks.items() if not reason]
    return {
        mask: reason or ("" if mask == able[number % len(able)] else "the turn of other commits")
        for mask, reason in masks.items()
    }


def main(arguments: Sequence[str]) -> int:
    status = 0
    shared = ["-n", "auto", "--dist", "worksteal", "-m", "not slow and not hardware"]
    masks = to_run(features(()))
    if arguments[:1] == ["--turn"]:
        arguments, masks = arguments[1:], in_turn(masks, Checkout().number())
    tests = list(arguments) or [*shared, *TESTS]
    for mask, reason in masks.items():
        if reason:
            print(f"mask {mask!r}: skipped: {reason}", flush=True)
            continue
        print(f"mask {mask!r}:", *(f"{k}={v!r}" for k, v in settings(mask).items()), flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        environment = os.environ | settings(mask) | {costs.FOLDER: ""}
        ended = subprocess.run(command, env=environment, check=False)
        status = ended.returncode or status
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
