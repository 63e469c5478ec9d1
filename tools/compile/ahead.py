"""`ugpu compile script.py --target adreno-a740 -o FOLDER`: compile a program's kernels for a device
that is not present.

The script runs on the processor (`cpu`). The kernels of everything that it computes are compiled
for the target into a cache folder. The machine with the device uses them from there, with
UGPU_CACHE=FOLDER.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ugpu import hcq
from ugpu.compiler.runtime.kernels.ahead import compiling_ahead
from ugpu.compiler.runtime.kernels.tiers import target_of
from ugpu.compiler.runtime.runtime import device_of, runtime_of, set_default_device
from ugpu.hcq import outfile
from ugpu.hcq.errors import DeviceNotFound, UsageError
from ugpu.hcq.state.target import TargetSpec
from ugpu.qcom import chips
from ugpu.tools.base.console import Output, count
from ugpu.tools.base.progress import shown
from ugpu.tools.base.scripts import as_program, execute

ADRENO = "adreno-"
CACHES = ("kernels", "tuned")  # folders of a cache (compiler.runtime.kernels.ahead)


def target_named(name: str) -> TargetSpec:
    """Return the target of an Adreno GPU (`adreno-a740`), or of a device that can be opened here
    (as `hcq.open` takes it), in the form in which that device compiles (tiers.target_of).
    UsageError for another name."""
    if name.startswith(ADRENO):
        try:
            return chips.facts(name.removeprefix(ADRENO)).target()
        except KeyError as error:
            raise UsageError(f"--target {name}: {error.args[0]}") from None
    try:
        with hcq.open(name) as device:
            return target_of(device)
    except DeviceNotFound as error:
        raise UsageError(
            f"--target: expected {ADRENO}CHIP or the name of a device, got {name!r} ({error})"
        ) from None


def run(script: str, arguments: Sequence[str], target: str, folder: Path, out: Output) -> int:
    """Run the script as __main__ on `cpu`; return its exit code. UsageError for a missing file and
    for an unknown target."""
    if not os.path.isfile(script):
        raise UsageError(f"file {script} does not exist")
    outfile.check_folder(folder, "a cache of kernels", CACHES)
    spec = target_named(target)
    set_default_device("cpu")
    runtime_of(device_of("cpu")).renew()  # plans made earlier would not be seen
    spoken = contextlib.redirect_stdout(sys.stderr) if out.as_json else contextlib.nullcontext()
    with (
        compiling_ahead(spec, folder) as compiled,
        as_program(script, arguments),
        spoken,
        shown(out, f"compile {script}"),
    ):
        code = execute(script)
    total = sum(compiled.sizes.values())
    out.say(f"{count(len(compiled.sizes), 'kernel')} for {spec.name}, {total} bytes, in {folder}")
    out.say(f"on the machine with the device: UGPU_CACHE={folder} python {script}")
    out.result(
        {"exit": code, "target": spec.name, "folder": str(folder), "kernels": compiled.sizes}
    )
    return code
