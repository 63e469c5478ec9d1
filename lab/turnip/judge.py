"""Run programs under turnip on a virtual GPU, and say what is wrong."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.turnip.build import CLIENT, NETWORK, Turnip
from ugpu.virtual.adreno.gpu import build_machine
from ugpu.virtual.adreno.machine import VirtualMachine
from ugpu.virtual.adreno.options import MachineOptions
from ugpu.virtual.adreno.served import Served

CHIPS = ["a630", "a660", "a740", "a750"]
LIMIT_S = 600.0  # TIMEOUT: 40 s on two busy cores for the larger network


def client(turnip: Turnip) -> list[str]:
    """The command of the client in C."""
    return [str(turnip.client), *map(str, turnip.shaders)]


def programs(turnip: Turnip) -> dict[str, list[str]]:
    """What is run under turnip: name and command."""
    python = str(turnip.ncnn)
    return {
        CLIENT.name: client(turnip),
        "ncnn, six layers": [python, str(NETWORK), "six"],
        "ncnn, residual network": [python, str(NETWORK), "residual"],
    }


@contextmanager
def served(turnip: Turnip, chip: str) -> Iterator[tuple[VirtualMachine, dict[str, str]]]:
    """A machine behind a socket, and the variables with which a program finds it."""
    machine = build_machine(chip, MachineOptions(caches="coherent", hang_limit_s=LIMIT_S))
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "kgsl"
        listener = Served(machine, socket)
        try:
            yield (
                machine,
                {
                    **os.environ,
                    "UGPU_KGSL": str(socket),
                    "LD_PRELOAD": str(turnip.preload),
                    "LD_LIBRARY_PATH": str(turnip.libraries),
                    "VK_DRIVER_FILES": str(turnip.manifest),
                    "MESA_SHADER_CACHE_DISABLE": "true",
                },
            )
        finally:
            listener.close()
            machine.close()


def objections(machine: VirtualMachine) -> str:
    """What a machine has against what it was given; "" for nothing."""
    found = [*machine.violations, *(entry.text for entry in machine.log)]
    return "; ".join(found + [str(gap) for gap in machine.gaps])


def check(turnip: Turnip, chip: str, command: list[str]) -> str:
    """Run a program. What is wrong: with the results, or what the model objects to; "" where
    nothing is."""
    with served(turnip, chip) as (machine, environment):
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=LIMIT_S,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"not at its end after {LIMIT_S:.0f} s"
    wrong = [line for line in done.stdout.splitlines() if line.startswith("wrong")]
    if done.returncode or wrong or "done" not in done.stdout:
        said = "; ".join(wrong or done.stderr.splitlines()[-1:])
        return f"status {done.returncode}: {said}; log: {[r.text for r in machine.log]}"
    return objections(machine)
