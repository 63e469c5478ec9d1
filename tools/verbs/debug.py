"""Verbs that debug: doctor, record, trace, sniff."""

from __future__ import annotations

import argparse
from pathlib import Path

from ugpu.hcq.errors import UsageError
from ugpu.hcq.state.config import config
from ugpu.tools.base.console import Output
from ugpu.tools.inspect import doctor as examination
from ugpu.tools.inspect import udev_rules
from ugpu.tools.verbs.verb import register

SNIFF_USAGE = """ugpu sniff [options] -- CMD [argument ...]
       ugpu sniff [options] device NAME
       ugpu sniff show FILE
       ugpu sniff compare FILE FILE
       ugpu sniff export FILE OUT.rd"""
RECORD_USAGE = """ugpu record [--states] DEVICE FILE [-- CMD [argument ...]]
       ugpu record replay FILE
       ugpu record show [--all] FILE
       ugpu record compare FILE FILE"""
RECORD_FORMS = """DEVICE FILE           open DEVICE, close it, and record every access in FILE
DEVICE FILE -- CMD    run CMD with DEVICE as the default device, and record its accesses
replay FILE           repeat the accesses without the device; fail at the first that differs
show FILE             show stages, failure and most used registers; --all: every entry
compare FILE FILE     show the first difference, by register name; exit code 1 if there is one

DEVICE must have a PCI transport: pci:ADDRESS, vfio-user:PATH or a virtual chip with registers.
hcq.open(name, record=FILE) and UGPU_RECORD=FILE also record."""
_DEVICE_WORDS = 2
TRACE_USAGE = """ugpu trace [-o FILE] [--device NAME] -- CMD [argument ...]
       ugpu trace show FILE
       ugpu trace filter FILE [REGISTER ...] [--field NAME[=VALUE]] [--stage NAME] ...
       ugpu trace diff FILE FILE
       ugpu trace export FILE TARGET.json"""


def _doctor(parser: argparse.ArgumentParser) -> None:
    written = f"write udev rules for USB bridges and VFIO; default: {udev_rules.DEFAULT}"
    parser.add_argument("--write-udev", nargs="?", type=Path, const=udev_rules.DEFAULT,
                        metavar="FILE", help=written)  # fmt: skip


@register("debug", "list what prevents this machine from using real hardware, with a "
                   "remedy for each",
          _doctor)  # fmt: skip
def doctor(arguments: argparse.Namespace, out: Output) -> int:
    if arguments.write_udev is not None:
        return udev_rules.write(arguments.write_udev, out)
    return examination.run(out)


def _record(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="with show: every entry, by name")
    states = "also read the states of units, queues and waves after each boot stage"
    parser.add_argument("--states", action="store_true", help=states)
    parser.add_argument("words", nargs=argparse.REMAINDER, help="one of the forms below")


@register("debug", "record every access to a device; replay, show, compare", _record,
          usage=RECORD_USAGE, epilog=RECORD_FORMS)  # fmt: skip
def record(arguments: argparse.Namespace, out: Output) -> int:
    # Loads the model of the chip, for its images.
    from ugpu.tools.debug import record

    states: bool = arguments.states
    match arguments.words:
        case ["show", "--all", file] | ["show", file, "--all"]:
            return record.show(Path(file), out, everything=True)
        case ["show", file]:
            return record.show(Path(file), out, everything=arguments.all)
        case ["compare", left, right]:
            return record.compare(Path(left), Path(right), out)
        case ["replay", file]:
            return record.replay(Path(file), out)
        case ["show" | "compare" | "replay", *_]:
            raise UsageError(f"usage: {RECORD_USAGE}")
        case [device, file]:
            return record.run(record.RecordOptions(device, Path(file), (), states), out)
        case [device, file, "--", _, *_]:
            command = arguments.words[3:]
            return record.run(record.RecordOptions(device, Path(file), command, states), out)
    raise UsageError(f"usage: {RECORD_USAGE}")


def _trace(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-o", "--output", type=Path, metavar="FILE", help="default: ugpu-trace.txt")
    add("--device", default="", metavar="NAME", help="the default device of the program")
    add("words", nargs=argparse.REMAINDER, help="-- CMD, or one of the forms below")


def _filter(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("ugpu trace filter", exit_on_error=False)
    add = parser.add_argument
    add("file", type=Path)
    add("registers", nargs="*", metavar="REGISTER", help="names; * and ? as in a shell")
    add("--field", action="append", default=[], metavar="NAME[=VALUE]",
        help="accesses in which the field is not zero, or has the value")  # fmt: skip
    add("--stage", default="", metavar="NAME", help="accesses of this stage; * and ? as in a shell")
    add("--only", choices=("read", "write"), default="", help="only reads or only writes")
    add("--since", type=float, default=0.0, metavar="SECONDS", help="from this time on")
    add("--until", type=float, default=float("inf"), metavar="SECONDS", help="up to this time")
    return parser.parse_args(words)


@register("debug", "trace a program's accesses by register and field; show, filter, export", _trace,
          usage=TRACE_USAGE)  # fmt: skip
def trace(arguments: argparse.Namespace, out: Output) -> int:
    from ugpu.tools.debug import record, tracing

    match arguments.words:
        case ["--", _, *_]:
            path = arguments.output or Path(tracing.DEFAULT)
            return tracing.run(path, arguments.words[1:], arguments.device, out)
        case ["show", file]:
            return tracing.show(Path(file), out)
        case ["filter", *words]:
            try:
                one = _filter(words)
            except argparse.ArgumentError as error:
                raise UsageError(f"{error}; usage: {TRACE_USAGE}") from None
            meant = tracing.Filter(one.registers, one.field, one.only, one.stage, one.since,
                                   one.until)  # fmt: skip
            return tracing.show(one.file, out, meant)
        case ["diff", left, right]:
            return record.compare(Path(left), Path(right), out)
        case ["export", file, target]:
            return tracing.export(Path(file), Path(target), out)
    raise UsageError(f"usage: {TRACE_USAGE}")


def _sniff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", default="ugpu-sniff.jsonl", help="default: %(default)s")
    parser.add_argument("--backend", default="auto", help="preload, ptrace; default: %(default)s")
    parser.add_argument("--prefix", default="", help="paths to watch begin with this")
    parser.add_argument("--memory", type=int, nargs="?", const=32, default=0, metavar="N",
                        help="also changed memory, at N doorbells or submissions (32)")  # fmt: skip
    parser.add_argument("--driver", default="",
                        help="NVIDIA's version, or kgsl; default: the running one")  # fmt: skip
    parser.add_argument("words", nargs=argparse.REMAINDER, help="-- CMD, or a verb")


@register("debug", "record a program's requests to NVIDIA's driver or KGSL; show, compare", _sniff,
          usage=SNIFF_USAGE)  # fmt: skip
def sniff(arguments: argparse.Namespace, out: Output) -> int:
    # Loads the tables of NVIDIA's interface, which other verbs do not need.
    from ugpu.tools.debug.sniff import command

    match arguments.words:
        case ["show", file]:
            return command.show(Path(file), out)
        case ["compare", left, right]:
            return command.compare(Path(left), Path(right), out)
        case ["export", file, target]:
            return command.export(Path(file), Path(target), out)
        case ["show" | "compare" | "export", *_] | []:
            raise UsageError(f"usage: {SNIFF_USAGE}")
    options = command.SniffOptions(
        Path(arguments.output),
        config().cache_folder,
        arguments.backend,
        arguments.prefix,
        arguments.memory,
        arguments.driver,
    )
    if arguments.words[0] == "device" and len(arguments.words) == _DEVICE_WORDS:
        return command.run_device(arguments.words[1], options, out)
    words = arguments.words[1:] if arguments.words[0] == "--" else arguments.words
    return command.run(words, options, out)
