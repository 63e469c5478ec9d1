"""Draw other examples than always: `python -m tests.seeds [SEED] [PYTEST ARGUMENT ...]`.

`make test` draws the same examples in each run, so that a failure can be repeated. Here the
properties that cost little draw theirs from a seed, which is printed first and repeats the run.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Sequence

from tests import costs

#: properties whose examples are not compiled, so that new ones cost little
TESTS = (
    "tests/virtual/amd/isa/decoder/test_decode_fields.py",
    "tests/am/chips/test_am_discovery.py",
    "tests/am/boot/test_am_firmware.py",
    "tests/virtual/amd/engines/test_engines_pm4.py",
    "tests/virtual/amd/engines/test_engines_sdma.py",
    "tests/virtual/amd/firmware/test_model_fuzz.py",
    "tests/virtual/amd/engines/test_model_scheduler.py",
    "tests/tools/clang2py/test_clang2py_drf.py",
    "tests/compiler/expression/test_compiler_index.py",
    "tests/hcq",
    "tests/nv/abi/test_nv_abi_bits.py",
    "tests/nv/code/test_nv_cubin.py",
    "tests/virtual/nvidia",
    "tests/tools",
)


def main(arguments: Sequence[str]) -> int:
    given = arguments[:1] if arguments and arguments[0].isdigit() else ()
    seed = int(given[0]) if given else secrets.randbits(32)
    print(f"seed {seed}: `python -m tests.seeds {seed}` draws the same examples", flush=True)
    tests = [*arguments[len(given) :]] or ["-n", "auto", "--dist", "worksteal", *TESTS]
    chosen = ("--hypothesis-profile", "ugpu-random", "--hypothesis-seed", str(seed))
    # Only what draws: the other tests of these files have run. Not what is marked slow by its file.
    marks = "hypothesis and (not slow or costly) and not hardware and not foreign"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
    environment = os.environ | {costs.FOLDER: ""}  # other examples cost something else
    return subprocess.run([*command, "-m", marks, *tests], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
