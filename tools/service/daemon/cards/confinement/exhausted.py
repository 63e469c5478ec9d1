"""The end of a process for want of memory, with an exit status of its own.

Python reports such an error as MemoryError; code of libraries calls abort, or uses the null pointer
that malloc returned. So a handler of these signals requests memory: if the system refuses it, the
process ends with the status `EXHAUSTED`, otherwise by the signal. malloc and the interpreter may
hold locks at that time: the handler makes system calls and nothing else.

Sources: mmap(2), exit_group(2), tgkill(2), sysv_signal(3); numbers of calls from asm/unistd_64.h
for x86-64 and asm-generic/unistd.h for AArch64.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
from typing import Never

from ugpu.hcq.cpu.memory import CodeMemory
from ugpu.hcq.errors import HostError

EXHAUSTED = 77  # exit status: no memory is left
ASKED = 64 << 20  # bytes that the handler requests; LLVM and malloc's arenas take less at a time
SIGNALS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL)

#: the handler: its assembly, and the machine code that LLVM makes of it
HANDLERS = {
    "x86_64": (
        """
        mov %edi, %ebx          # the signal
        mov $9, %eax            # mmap(0, ASKED, read and write, private and anonymous, -1, 0)
        xor %edi, %edi
        mov $0x4000000, %esi
        mov $3, %edx
        mov $0x22, %r10d
        mov $-1, %r8
        xor %r9d, %r9d
        syscall
        cmp $-12, %rax          # ENOMEM
        jne 1f
        mov $77, %edi           # exit_group(EXHAUSTED)
        mov $231, %eax
        syscall
        1: mov $39, %eax        # tgkill(getpid(), gettid(), signal)
        syscall
        mov %eax, %edi
        mov $186, %eax
        syscall
        mov %eax, %esi
        mov %ebx, %edx
        mov $234, %eax
        syscall
        """,
        "89fbb80900000031ffbe00000004ba0300000041ba2200000049c7c0ffffffff4531c90f054883f8"
        "f4750cbf4d000000b8e70000000f05b8270000000f0589c7b8ba0000000f0589c689dab8ea000000"
        "0f05",
    ),
    "aarch64": (
        """
        mov x19, x0
        mov x8, #222
        mov x0, #0
        mov x1, #0x4000000
        mov x2, #3
        mov x3, #0x22
        mov x4, #-1
        mov x5, #0
        svc #0
        cmn x0, #12
        b.ne 1f
        mov x0, #77
        mov x8, #94
        svc #0
        1: mov x8, #172
        svc #0
        mov x20, x0
        mov x8, #178
        svc #0
        mov x1, x0
        mov x0, x20
        mov x2, x19
        mov x8, #131
        svc #0
        """,
        "f30300aac81b80d2000080d20180a0d2620080d2430480d204008092050080d2010000d41f3000b1"
        "81000054a00980d2c80b80d2010000d4881580d2010000d4f40300aa481680d2010000d4e10300aa"
        "e00314aae20313aa681080d2010000d4",
    ),
}

_code: list[CodeMemory] = []  # of this process; never unmapped


def end() -> Never:
    """End the process: without memory it can neither go on nor recover."""
    os._exit(EXHAUSTED)


def arm() -> None:
    """Install the handler, for as long as the process lives. HostError if the system or the C
    library has no way to."""
    handler = HANDLERS.get(platform.machine())
    library = ctypes.CDLL(None)
    try:
        # The handler is removed when it is called, so that it can end the process by the signal.
        install = library.sysv_signal
    except AttributeError:
        raise HostError("the C library has no sysv_signal") from None
    if handler is None:
        raise HostError(f"signals of want of memory are not handled on {platform.machine()}")
    install.restype = ctypes.c_void_p
    image = bytes.fromhex(handler[1])
    code = CodeMemory(len(image))
    code.fill(image)
    _code.append(code)
    for number in SIGNALS:
        install(number, ctypes.c_void_p(code.address))
