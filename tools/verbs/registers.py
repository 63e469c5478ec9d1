"""Verbs for registers and for evidence of failures: peek, reg, crash."""

from __future__ import annotations

import argparse
from pathlib import Path

from ugpu.hcq.errors import UsageError
from ugpu.tools.base.console import Output
from ugpu.tools.verbs.verb import register

USAGE = """ugpu reg read SOURCE REGISTER ... [--at N] [--save FILE]
       ugpu reg write DEVICE REGISTER[.FIELD]=NUMBER ... [--yes]
       ugpu reg watch DEVICE REGISTER ... [--every SECONDS] [--looks N]
       ugpu reg lookup CHIP REGISTER|0xOFFSET ...
       ugpu reg diff SOURCE SOURCE [REGISTER ...] [--at N]"""
FORMS = """\
REGISTER is a name such as gc.GRBM_STATUS or CP_STAT, or a field (CP_STAT.CP_BUSY); * and
? match. SOURCE is a device, a recording (FILE, or FILE@STAGE for its state after a stage of the
boot; with --at N its state after access number N, as `ugpu trace show` numbers them), a crash
bundle (a file, or its number in `ugpu crash ls`), a file that --save wrote; it may be named by
--from SOURCE too. DEVICE is booted as for work, which changes its state; with --no-boot it is
looked at as it is (pci:ADDRESS, vfio-user:PATH).

read     show values and fields
write    show the change and its possible effects, and ask for confirmation
watch    show each change until Ctrl-C
lookup   show address and fields of a chip's registers, by name or address, without a device
diff     show the registers that differ, the earliest first; exit code 1 if there are any"""


def _peek(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", help="a name that `ugpu ls` shows")
    parser.add_argument("registers", nargs="+", metavar="REGISTER",
                        help="names such as gc.GRBM_STATUS or CP_STAT; * and ? match")  # fmt: skip


@register("look", "read registers by name and show their fields", _peek)
def peek(arguments: argparse.Namespace, out: Output) -> int:
    from ugpu.tools.inspect.registers import command

    return command.read(arguments.device, arguments.registers, out)


def _reg(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("word", choices=("read", "write", "watch", "lookup", "diff"))
    parser.add_argument("names", nargs="+", metavar="NAME", help="see below")
    parser.add_argument("--no-boot", action="store_true", help="do not boot the device")
    parser.add_argument(
        "--at",
        type=lambda text: int(text, 0),
        metavar="N",
        help="with read and diff: the moment of a recording, the first of two",
    )
    parser.add_argument("--yes", action="store_true", help="write without confirmation")
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="with read: store the values in FILE"
    )
    parser.add_argument("--every", type=float, default=0.1, metavar="SECONDS")
    parser.add_argument("--looks", type=int, metavar="N", help="with watch: exit after N polls")


@register("debug", "registers of a device or recording: read, write, watch, look up, compare", _reg,
          usage=USAGE, epilog=FORMS, source_at=1)  # fmt: skip
def reg(arguments: argparse.Namespace, out: Output) -> int:
    from ugpu.tools.inspect.registers import command

    first, *rest = arguments.names
    boot = not arguments.no_boot
    if arguments.at is not None and arguments.word not in ("read", "diff"):
        raise UsageError("--at is for read and diff of recordings")
    if arguments.word == "diff" and rest:
        return command.diff(first, rest[0], rest[1:], out, boot=boot, at=arguments.at)
    if not rest:
        raise UsageError(f"usage: {USAGE}")
    if arguments.word == "read":
        return command.read(first, rest, out, boot=boot, keep=arguments.save, at=arguments.at)
    if arguments.word == "write":
        return command.write(first, rest, out, boot=boot, yes=arguments.yes)
    if arguments.word == "lookup":
        return command.lookup(first, rest, out)
    if not 0 < arguments.every < float("inf"):
        raise UsageError(f"expected a positive number of seconds, got {arguments.every}")
    if arguments.looks is not None and arguments.looks < 1:
        raise UsageError(f"expected a positive number of polls, got {arguments.looks}")
    return command.watch(first, rest, out, boot=boot, every_s=arguments.every,
                         looks=arguments.looks)  # fmt: skip


CRASH_USAGE = """ugpu crash ls
       ugpu crash show BUNDLE [PART ...]
       ugpu crash diff BUNDLE BUNDLE|RECORDING[@STAGE]
       ugpu crash export BUNDLE FILE|FOLDER/"""
CRASH_FORMS = """When a device fails, a crash bundle of its first failure is written:
registers, queues, waves, page tables, programs. BUNDLE is such a file, the beginning of its name,
or its number in `ls`. `ugpu reg` also reads the registers of a bundle. UGPU_CRASHES sets the
folder; 0 disables bundles."""


def _crash(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("word", choices=("ls", "show", "diff", "export"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="see below")


@register("debug", "inspect crash bundles of failed devices: ls, show, diff, export", _crash,
          usage=CRASH_USAGE, epilog=CRASH_FORMS)  # fmt: skip
def crash(arguments: argparse.Namespace, out: Output) -> int:
    from ugpu.tools.debug import crash as kept

    match [arguments.word, *arguments.names]:
        case ["ls"]:
            return kept.ls(out)
        case ["show", name, *parts]:
            return kept.show(name, parts, out)
        case ["diff", left, right]:
            return kept.diff(left, right, out)
        case ["export", name, target]:
            return kept.export(name, target, out)
    raise UsageError(f"usage: {CRASH_USAGE}")
