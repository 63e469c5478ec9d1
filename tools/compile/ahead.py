"""`ugpu compile script.py --target adreno-a740 -o FOLDER`: compile a program's kernels for a device
that is not present.

The script runs on the processor (`cpu`), or on the target if that is a virtual GPU: its model
translates each kernel as it is launched. The kernels of everything that it computes are compiled
for the target into a cache folder, which gets a model's translations too. The machine with the
device uses them from there, with UGPU_CACHE=FOLDER. Translations fit processors of the same kind,
and the same version of ugpu and LLVM; others are not found, and made again.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ugpu import hcq
from ugpu.compiler.runtime.kernels.ahead import compiling_ahead
from ugpu.compiler.runtime.kernels.tiers import target_of
from ugpu.compiler.runtime.runtime import device_of, runtime_of, set_default_device
from ugpu.hcq import outfile
from ugpu.hcq.errors import DeviceNotFound, UsageError
from ugpu.hcq.objects import recompile
from ugpu.hcq.state.config import setting
from ugpu.hcq.state.target import TargetSpec
from ugpu.qcom import chips
from ugpu.tools.base.console import Output, count
from ugpu.tools.base.progress import shown
from ugpu.tools.base.scripts import as_program, execute

ADRENO = "adreno-"
VIRTUAL = "virtual:"
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


@contextlib.contextmanager
def running(target: str, folder: Path) -> Iterator[None]:
    """Have tensors without `device=` use what a program for the target runs on in the block. A
    model's translations, the second versions too, are in the folder at its end."""
    if not target.startswith(VIRTUAL):
        set_default_device("cpu")
        runtime_of(device_of("cpu")).renew()  # plans made earlier would not be seen
        yield
        return
    with setting("UGPU_CACHE", str(folder)), hcq.open(target) as device:
        set_default_device(device)
        try:
            yield
            recompile.SHARED.get().wait()
        finally:
            set_default_device("")


def run(script: str, arguments: Sequence[str], target: str, folder: Path, out: Output) -> int:
    """Run the script as __main__; return its exit code. UsageError for a missing file and for an
    unknown target."""
    if not os.path.isfile(script):
        raise UsageError(f"file {script} does not exist")
    outfile.check_folder(folder, "a cache of kernels", CACHES)
    spec = target_named(target)
    spoken = contextlib.redirect_stdout(sys.stderr) if out.as_json else contextlib.nullcontext()
    with (
        running(target, folder),
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
