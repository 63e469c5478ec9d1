"""Verbs that run kernels: demo, explain, tune, compile."""

from __future__ import annotations

import argparse
from pathlib import Path

from ugpu.am import chips
from ugpu.hcq.errors import UsageError
from ugpu.tools.base.console import Output
from ugpu.tools.verbs.verb import register


def _demo(parser: argparse.ArgumentParser) -> None:
    default = f"virtual:{chips.DEFAULT}"
    parser.add_argument("name", nargs="?", metavar="DEVICE", help=f"default: {default}")
    parser.add_argument("--device", help="the same")


@register("run", "boot a device and classify 1,797 handwritten digits on it", _demo)
def demo(arguments: argparse.Namespace, out: Output) -> int:
    # Loads the compiler, which verbs of other groups do not need.
    from ugpu.tools.compile import demo

    name, option = arguments.name, arguments.device
    if name and option and name != option:
        raise UsageError(f"expected one device, got {name} and --device {option}")
    return demo.run(name or option or f"virtual:{chips.DEFAULT}", out)


def _script(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("script", help="a Python file that uses ugpu.Tensor")
    parser.add_argument("--device", help="default device of the script")


def _explain(parser: argparse.ArgumentParser) -> None:
    _script(parser)
    parser.add_argument("--ir", action="store_true", help="also show each kernel's IR")
    parser.add_argument("--show", default="", metavar="PARTS",
                        help="also show: graph, schedule, kernels (IR), code")  # fmt: skip
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")


@register("run", "run a script and show its kernels with their times and rates", _explain,
          usage="ugpu explain [option ...] SCRIPT [argument of the script ...]")  # fmt: skip
def explain(arguments: argparse.Namespace, out: Output) -> int:
    # Loads the compiler too.
    from ugpu.tools.compile import explain

    show = [word for word in arguments.show.split(",") if word]
    show += ["kernels"] if arguments.ir else []
    return explain.run(arguments.script, arguments.arguments, arguments.device, show, out)


def _tune(parser: argparse.ArgumentParser) -> None:
    _script(parser)
    parser.add_argument("--beam", type=int, default=4, metavar="N",
                        help="number of best candidates to vary; default: %(default)s")  # fmt: skip
    parser.add_argument("--budget", type=float, default=60, metavar="SECONDS",
                        help="total for all kernels; default: %(default)s")  # fmt: skip
    parser.add_argument("--details", action="store_true", help="show all candidates")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")


@register("run", "search for faster kernels for a script and save them", _tune,
          usage="ugpu tune [option ...] SCRIPT [argument of the script ...]")  # fmt: skip
def tune(arguments: argparse.Namespace, out: Output) -> int:
    # Loads the compiler too.
    from ugpu.tools.compile import tune

    options = tune.TuneOptions(
        arguments.device, arguments.beam, arguments.budget, arguments.details
    )
    return tune.run(arguments.script, arguments.arguments, options, out)


def _compile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("script", help="a Python file that uses ugpu.Tensor")
    parser.add_argument("--target", required=True, metavar="NAME",
                        help="a name such as adreno-a740, or a device of this machine, "
                             "as `ugpu ls` names it")  # fmt: skip
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER", type=Path,
                        help=("output folder; set UGPU_CACHE to it "
                             "on the target machine"))  # fmt: skip
    parser.add_argument("arguments", nargs="*", help="arguments of the script, options after --")


@register("run", "compile a script's kernels for another device", _compile,
          name="compile",
          usage="ugpu compile SCRIPT --target NAME -o FOLDER [argument ...]")  # fmt: skip
def compile_ahead(arguments: argparse.Namespace, out: Output) -> int:
    # Loads the compiler too.
    from ugpu.tools.compile import ahead as ahead

    return ahead.run(arguments.script, arguments.arguments, arguments.target, arguments.output, out)
