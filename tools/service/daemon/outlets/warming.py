"""The process of one program that ugpud runs to compile its kernels (`warmer`):

python -m ugpu.tools.service.daemon.outlets.warming SOCKET DEVICE WAIT_S PROGRAM
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ugpu import hcq
from ugpu.compiler.runtime.runtime import set_default_device
from ugpu.tools.base.scripts import as_program, execute


def main(arguments: Sequence[str]) -> int:
    """Run a program as __main__, with a lease as the default device; return its exit code."""
    socket, device, wait_s, program = arguments
    lease = hcq.lease(device, priority=0, wait_s=float(wait_s), daemon=socket)
    with lease as gpu, as_program(program, []):
        set_default_device(gpu)
        return execute(program)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
