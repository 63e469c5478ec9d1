"""Verbs that inspect a chip: shell, fw, waves, ring, vm, mem."""

from __future__ import annotations

import argparse

from ugpu.hcq.errors import UsageError
from ugpu.tools.base.console import Output
from ugpu.tools.verbs.verb import register

SOURCE = (
    "a device as it is (pci:ADDRESS, vfio-user:PATH, virtual:CHIP), a crash bundle (a file, or "
    "its number in `ugpu crash ls`), or a recording (FILE, or FILE@STAGE for its state after a "
    "stage of the boot)"
)
AT = "of a recording: the state after access number N (as `ugpu trace show` numbers them)"


def number(text: str) -> int:
    return int(text, 0)


def _source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help=SOURCE)
    parser.add_argument("--boot", action="store_true", help="boot the device first")
    parser.add_argument("--at", type=number, metavar="N", help=AT)


def _shell(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", help="a name that `ugpu ls` shows")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--no-boot", dest="how", action="store_const", const="look", default="boot",
                     help="do not boot the device")  # fmt: skip
    how.add_argument("--steps", dest="how", action="store_const", const="steps",
                     help="boot it stage by stage: boot.next(), boot.until(STAGE)")  # fmt: skip
    parser.add_argument("-c", dest="commands", action="append", default=[], metavar="CODE",
                        help="run CODE and exit; may be repeated")  # fmt: skip


@register("debug", "start IPython with a device, its registers and its boot stages", _shell)
def shell(arguments: argparse.Namespace, out: Output) -> int:
    from ugpu.tools.debug import shell as interactive

    return interactive.run(arguments.device, out, how=arguments.how, commands=arguments.commands)


def _fw(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("word", choices=("state",))
    _source(parser)


@register("debug", "the state of each firmware and unit, with its meaning and remedy", _fw,
          usage="ugpu fw state SOURCE [--boot] [--at N]", source_at=1)  # fmt: skip
def fw(arguments: argparse.Namespace, out: Output) -> int:
    from ugpu.tools.inspect import internals as inside

    return inside.states(arguments.source, out, boot=arguments.boot, at=arguments.at)


def _waves(parser: argparse.ArgumentParser) -> None:
    _source(parser)
    parser.add_argument("--registers", action="store_true",
                        help="show the scalar and vector registers of the first waves")  # fmt: skip


@register("debug", "the waves on a chip: place, program counter, kernel", _waves, source_at=0)
def waves(arguments: argparse.Namespace, out: Output) -> int:
    from ugpu.tools.inspect import internals as inside

    return inside.waves(
        arguments.source, out, boot=arguments.boot, at=arguments.at, words=arguments.registers
    )


@register("debug", "the active compute queues of a chip, with their pointers", _source, source_at=0)
def ring(arguments: argparse.Namespace, out: Output) -> int:
    from ugpu.tools.inspect import internals as inside

    return inside.rings(arguments.source, out, boot=arguments.boot, at=arguments.at)


def _vm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("word", choices=("walk",))
    _source(parser)
    parser.add_argument("address", type=number)
    parser.add_argument("--vmid", type=int, help="default: the one this driver's work has")
    parser.add_argument("--hub", choices=("gc", "mmhub"), default="gc")


@register("debug", "the page table entries that lead to an address", _vm, source_at=1,
          usage="ugpu vm walk SOURCE ADDRESS [--vmid N] [--hub gc|mmhub]\n       "
          "             [--boot] [--at N]")  # fmt: skip
def vm(arguments: argparse.Namespace, out: Output) -> int:
    from ugpu.tools.inspect import internals as inside

    return inside.walk(arguments.source, arguments.address, out, vmid=arguments.vmid,
                       hub=arguments.hub, boot=arguments.boot, at=arguments.at)  # fmt: skip


def _mem(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("word", choices=("read", "write"))
    _source(parser)
    parser.add_argument("address", type=number, help="in VRAM, a multiple of 4")
    parser.add_argument("values", type=number, nargs="*", help="read: bytes (256); write: words")
    parser.add_argument("--yes", action="store_true", help="write without asking")


@register("debug", "read or write VRAM at VRAM addresses", _mem,
          usage="ugpu mem read SOURCE ADDRESS [SIZE] [--boot] [--at N]\n       "
          "ugpu mem write DEVICE ADDRESS WORD ... [--boot] [--yes]", source_at=1)  # fmt: skip
def mem(arguments: argparse.Namespace, out: Output) -> int:
    from ugpu.tools.inspect import internals as inside

    source, address, values, boot = (
        arguments.source, arguments.address, arguments.values, arguments.boot,
    )  # fmt: skip
    if arguments.word == "read" and len(values) <= 1:
        size = values[0] if values else 256
        return inside.read_memory(source, address, size, out, boot=boot, at=arguments.at)
    if arguments.word == "write" and values:
        if arguments.at is not None:
            raise UsageError("--at is for recordings, which cannot be written")
        return inside.write_memory(source, address, values, out, boot=boot, yes=arguments.yes)
    raise UsageError("usage: ugpu mem read SOURCE ADDRESS [SIZE], or write DEVICE ADDRESS WORD ...")
