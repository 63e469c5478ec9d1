"""The `ugpu` command. Verbs: ls, info, smi, demo, record, serve, explain, tune, sniff, doctor,
bind, unbind, eject; all take --json.

Exit codes: 0 done; 1 the work failed or a finding stands in the way; 2 wrong usage;
130 interrupted; 141 the reader of stdout left. Errors are one line on stderr, and JSON on stdout
with --json.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hcq.config import config
from hcq.errors import HostError, UgpuError, UsageError
from hcq.log import configure, remove

from . import devices, doctor, pci, smi
from .console import Output

SNIFF_USAGE = """ugpu sniff [options] -- CMD [argument ...]
       ugpu sniff [options] device NAME
       ugpu sniff show FILE
       ugpu sniff compare FILE FILE"""
RECORD_USAGE = """ugpu record DEVICE FILE [-- CMD [argument ...]]
       ugpu record replay FILE
       ugpu record show [--all] FILE
       ugpu record compare FILE FILE"""
RECORD_FORMS = """DEVICE FILE           open DEVICE and close it; FILE keeps all that was done to it
DEVICE FILE -- CMD    run CMD, and keep all that it does to DEVICE (as the default device)
replay FILE           do the same again without the device, and say where it goes another way
show FILE             stages, failure and most used registers; --all: every entry
compare FILE FILE     the first difference, by the names of registers; exit code 1 if there is one

DEVICE is behind a PCI transport: pci:ADDRESS, vfio-user:PATH or a virtual chip with registers.
hcq.open(name, record=FILE) and UGPU_RECORD=FILE record without this program."""
_DEVICE_WORDS = 2
JSON = "--json"
MARKS = {"ok": ("ok", "green"), "missing": ("MISSING", "red"), "note": ("note", "yellow")}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def parser() -> argparse.ArgumentParser:
    top = _Parser(prog="ugpu", description="User-space GPU drivers in Python.")
    shared = _Parser(add_help=False)
    shared.add_argument(JSON, action="store_true", help="print JSON instead of text")
    shared.add_argument(
        "-v", "--verbose", action="count", default=0, help="log; up to three times for more"
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("ls", parents=[shared], help="list the devices that can be opened")
    info = verbs.add_parser("info", parents=[shared], help="open a device and show its facts")
    info.add_argument("device", help="a name that `ugpu ls` shows, e.g. virtual:navi31")
    read = verbs.add_parser("smi", parents=[shared], help="show what the sensors of GPUs read")
    read.add_argument("devices", nargs="*", help="default: every GPU of this machine")
    demo = verbs.add_parser("demo", parents=[shared], help="classify digits on a device")
    demo.add_argument("--device", default="virtual:navi31", help="default: %(default)s")
    offer = verbs.add_parser("serve", parents=[shared], help="offer a virtual chip to others")
    offer.add_argument("--vfio-user", required=True, metavar="SOCKET", help="where to listen")
    offer.add_argument("--firmware", metavar="DIR", help="where its images go; default: a new one")
    offer.add_argument("--vram", type=float, default=24, metavar="GIB", help="default: %(default)s")
    offer.add_argument("--map-vram", action="store_true", help="clients map VRAM (for guests)")
    offer.add_argument("device", help="virtual:navi31")
    told = verbs.add_parser("explain", parents=[shared], help="run a script, show its kernels")
    told.add_argument("script", help="a Python file that uses compiler.Tensor")
    told.add_argument("--device", help="the default device while it runs, e.g. virtual:navi31")
    told.add_argument("--ir", action="store_true", help="also each kernel's IR")
    told.add_argument("--show", default="", metavar="PARTS",
                      help="also these: graph, schedule, kernels (IR), code")  # fmt: skip
    told.add_argument("arguments", nargs=argparse.REMAINDER, help="all that follows: the script's")
    search = verbs.add_parser("tune", parents=[shared], help="search faster kernels for a script")
    search.add_argument("script", help="a Python file that uses compiler.Tensor")
    search.add_argument("--device", help="the default device while it runs, e.g. virtual:navi31")
    search.add_argument("--beam", type=int, default=4, metavar="N",
                        help="how many of the best are varied; default: %(default)s")  # fmt: skip
    search.add_argument("--budget", type=float, default=60, metavar="SECONDS",
                        help="for all kernels together; default: %(default)s")  # fmt: skip
    search.add_argument("--details", action="store_true", help="show everything that was tried")
    search.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own")
    heard = verbs.add_parser("sniff", parents=[shared], usage=SNIFF_USAGE,
                             help="record what a program asks of NVIDIA's driver")  # fmt: skip
    heard.add_argument("-o", "--output", default="ugpu-sniff.jsonl", help="default: %(default)s")
    heard.add_argument("--backend", default="auto", help="preload, ptrace; default: %(default)s")
    heard.add_argument("--prefix", default="/dev/nvidia", help="paths to watch begin with this")
    heard.add_argument("--memory", type=int, nargs="?", const=32, default=0, metavar="N",
                       help="also what changed in mapped memory at N doorbells (32)")  # fmt: skip
    heard.add_argument("--driver", default="", help="its version; default: the running one's")
    heard.add_argument("words", nargs=argparse.REMAINDER, help="-- CMD, or show, or compare")
    kept = verbs.add_parser(
        "record", parents=[shared], usage=RECORD_USAGE, epilog=RECORD_FORMS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="record what is done to a device; replay, show, compare",
    )  # fmt: skip
    kept.add_argument("--all", action="store_true", help="with show: every entry, by name")
    kept.add_argument("words", nargs=argparse.REMAINDER, help="one of the forms below")
    verbs.add_parser("doctor", parents=[shared], help="say what is missing to reach real hardware")
    for verb, what in pci.VERBS.items():
        one = verbs.add_parser(verb, parents=[shared], help=what)
        one.add_argument("device", help="a device of `ugpu ls`, e.g. pci:0000:03:00.0")
        one.add_argument("--dry-run", action="store_true", help="show the steps, change nothing")
    return top


def run_doctor(out: Output) -> int:
    """Show the findings; 1 if one of them stands between this machine and real hardware."""
    findings = doctor.Doctor().findings()
    for finding in findings:
        mark, style = MARKS[finding.state]
        out.say(f"{mark:>8}  {finding.check}: {finding.detail}", style=style)
        if finding.remedy:
            out.say(f"          {finding.remedy}")
    report = doctor.as_json(findings)
    out.result(report)
    return 0 if report["ready"] else 1


def run_demo(device: str, out: Output) -> int:
    # Loads the compiler, which the other verbs do not need.
    from . import demo

    return demo.run(device, out)


def run_serve(arguments: argparse.Namespace, out: Output) -> int:
    # Loads the model of the chip, which the other verbs do not need.
    from . import serve

    return serve.run(
        serve.ServeOptions(
            Path(arguments.vfio_user),
            arguments.device,
            serve.vram_bytes(arguments.vram),
            Path(arguments.firmware) if arguments.firmware else None,
            arguments.map_vram,
        ),
        out,
    )


def run_explain(arguments: argparse.Namespace, out: Output) -> int:
    # Loads the compiler too.
    from . import explain

    show = [word for word in arguments.show.split(",") if word]
    show += ["kernels"] if arguments.ir else []
    return explain.run(arguments.script, arguments.arguments, arguments.device, show, out)


def run_tune(arguments: argparse.Namespace, out: Output) -> int:
    # Loads the compiler too.
    from . import tune

    options = tune.TuneOptions(
        arguments.device, arguments.beam, arguments.budget, arguments.details
    )
    return tune.run(arguments.script, arguments.arguments, options, out)


def run_sniff(arguments: argparse.Namespace, out: Output) -> int:
    # Loads the tables of NVIDIA's interface, which the other verbs do not need.
    from .sniff import command

    match arguments.words:
        case ["show", file]:
            return command.show(Path(file), out)
        case ["compare", left, right]:
            return command.compare(Path(left), Path(right), out)
        case ["show" | "compare", *_] | []:
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


def run_record(arguments: argparse.Namespace, out: Output) -> int:
    # Loads the model of the chip, for its images.
    from . import record

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
            return record.run(record.RecordOptions(device, Path(file)), out)
        case [device, file, "--", _, *_]:
            command = arguments.words[3:]
            return record.run(record.RecordOptions(device, Path(file), command), out)
    raise UsageError(f"usage: {RECORD_USAGE}")


def dispatch(arguments: argparse.Namespace, out: Output) -> int:
    match arguments.verb:
        case "ls":
            return devices.run_ls(out)
        case "info":
            return devices.run_info(arguments.device, out)
        case "smi":
            return smi.run(arguments.devices, out)
        case "demo":
            return run_demo(arguments.device, out)
        case "record":
            return run_record(arguments, out)
        case "serve":
            return run_serve(arguments, out)
        case "explain":
            return run_explain(arguments, out)
        case "tune":
            return run_tune(arguments, out)
        case "sniff":
            return run_sniff(arguments, out)
        case "doctor":
            return run_doctor(out)
        case "bind" | "unbind" | "eject":
            return pci.run(arguments.verb, arguments.device, out, dry_run=arguments.dry_run)
    raise AssertionError(arguments.verb)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; its exit code. Nothing but an error of our own leaves by a traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stdout is None:
        print("ugpu: HostError: stdout is closed", file=sys.stderr)
        return 1
    out = Output(JSON in words)
    return out.end(_run(words, out))


def _run(words: Sequence[str], out: Output) -> int:
    handler: logging.Handler | None = None
    try:
        arguments = parser().parse_args(words)
        out.as_json = arguments.json  # the word may have been a script's
        levels = (config().log_level, "info", "debug", "trace")
        handler = configure(levels[min(arguments.verbose, 3)])
        return dispatch(arguments, out)
    except SystemExit as end:  # argparse, after --help
        return int(end.code or 0)
    except UgpuError as error:
        return _failed(error, out)
    except OSError as error:  # a file that somebody named, or that the system refuses
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or error
        return _failed(HostError(str(what)), out)
    except KeyboardInterrupt:
        print("ugpu: interrupted", file=sys.stderr)
        return 130
    finally:
        if handler is not None:
            remove(handler)


def _failed(error: UgpuError, out: Output) -> int:
    print(f"ugpu: {type(error).__name__}: {error}", file=sys.stderr)
    out.result({"error": type(error).__name__, "message": str(error), **error.facts})
    return 2 if isinstance(error, UsageError) else 1


if __name__ == "__main__":
    sys.exit(main())
