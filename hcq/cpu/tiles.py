"""Permission to use the tile registers of x86 (AMX), which Linux grants to a process on request.

Facts: Linux Documentation/arch/x86/xstate.rst; ARCH_REQ_XCOMP_PERM in
arch/x86/include/uapi/asm/prctl.h; the number of arch_prctl in
arch/x86/entry/syscalls/syscall_64.tbl; XFEATURE_XTILE_DATA in arch/x86/include/asm/fpu/types.h.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Mapping

SYS_ARCH_PRCTL = 158
ARCH_REQ_XCOMP_PERM = 0x1023
XFEATURE_XTILE_DATA = 18


def request(call: Callable[..., int] | None = None) -> bool:
    """Request permission for this process and all its threads; return False if it is refused (an
    older kernel, or an alternative signal stack too small for the registers). Idempotent. call:
    syscall(2)."""
    if platform.machine() != "x86_64":
        return False
    ask = call or ctypes.CDLL(None).syscall
    numbers = (SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA)
    return int(ask(*(ctypes.c_long(number) for number in numbers))) == 0


def usable(features: Mapping[str, bool], call: Callable[..., int] | None = None) -> dict[str, bool]:
    """Return the processor's features by LLVM's names, without tiles if these may not be used."""
    if features.get("amx-tile") and not request(call):
        return {name: on and not name.startswith("amx") for name, on in features.items()}
    return dict(features)
