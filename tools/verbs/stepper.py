"""The verb that halts kernels at instructions: debug."""

from __future__ import annotations

import argparse
from pathlib import Path

from ugpu.am import chips
from ugpu.tools.base.console import Output
from ugpu.tools.verbs.verb import register


def _debug(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", help=f"default device of the script; default: virtual:{chips.DEFAULT}")
    add("--commands", type=Path, metavar="FILE", help="debugger commands, one per line")
    add("script", help="a Python file that runs kernels on a model")
    add("arguments", nargs=argparse.REMAINDER, help="arguments of the script")


@register("debug", "debug a script's kernels on a model: breakpoints, registers, "
                   "watchpoints", _debug,
          usage="ugpu debug [--device NAME] [--commands FILE] SCRIPT [argument ...]")  # fmt: skip
def debug(arguments: argparse.Namespace, out: Output) -> int:
    # Loads the compiler, which other verbs do not need.
    from ugpu.tools.debug.stepper import command

    return command.run(
        arguments.script, arguments.arguments, arguments.device, arguments.commands, out
    )
