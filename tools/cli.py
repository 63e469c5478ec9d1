"""The `ugpu` command. Its verbs are those of `tools/verbs`; all take --json.

Exit codes: 0 done; 1 the work failed or a finding prevents it; 2 wrong usage; 130 interrupted; 141
the reader of stdout has exited. Errors are one line on stderr, and JSON on stdout with --json.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from rich.console import Console
from rich.text import Text

from ugpu import __version__
from ugpu.hcq.errors import HostError, UgpuError, UsageError
from ugpu.hcq.near import meant
from ugpu.hcq.state.config import config
from ugpu.hcq.state.log import configure, remove
from ugpu.hcq.state.text import lines
from ugpu.tools.base.console import Output
from ugpu.tools.verbs.verb import REGISTERED, load, overview

JSON = "--json"
FROM = "--from"


class _Parser(argparse.ArgumentParser):
    """A parser whose errors name the verb's own help, and the words that were probably meant."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # as argparse's
        """Refuse unknown arguments here, where they stand; argparse refuses them at the top."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [word for word in self._option_string_actions if word.startswith("--")]
            hint = meant(unknown[0].split("=")[0], options).strip()
            found = f"unrecognized arguments: {' '.join(unknown)}"
            self.error(f"{found}; {hint}" if hint else found)
        return known, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # Any: of any type
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            hint = meant(str(value), known)
            what = "/".join(action.option_strings) or action.metavar or action.dest
            raise argparse.ArgumentError(
                None, f"unknown {what} {value!r}; {hint}known: {', '.join(known)}"
            )


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser: every registered verb, in the groups of its overview."""
    verbs = load()
    top = _Parser(
        prog="ugpu",
        usage="ugpu VERB [--json] [-v] [argument ...]",
        description="User-space GPU drivers in Python.",
        epilog=f"{overview()}\n\n`ugpu VERB --help` shows a verb's arguments.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    shared = _Parser(add_help=False)
    shared.add_argument(JSON, action="store_true", help="print JSON instead of text")
    shared.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help=("print log messages; repeat up to three times for more"),
    )
    top.add_argument("--version", action="version", version=f"ugpu {__version__}")
    each = top.add_subparsers(
        dest="verb", required=True, metavar="VERB", help=argparse.SUPPRESS, prog="ugpu"
    )
    for verb in verbs.values():
        made = each.add_parser(
            verb.name,
            parents=[shared],
            usage=verb.usage,
            description=verb.help[0].upper() + verb.help[1:] + ".",
            epilog=verb.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.arguments(made)
    return top


def _verb_first(words: Sequence[str]) -> list[str]:
    """Turn `ugpu -v info cpu` into `ugpu info -v cpu`: options that all verbs take may come
    first."""
    shared = (JSON, "--verbose", "-v", "-vv", "-vvv")
    at = next((n for n, word in enumerate(words) if word not in shared), len(words))
    return [*words[at : at + 1], *words[:at], *words[at + 1 :]]


def _source_in_place(words: list[str]) -> list[str]:
    """Turn `ugpu vm walk 0x1000 --from FILE` into `ugpu vm walk FILE 0x1000`, for verbs with a
    source."""
    at = next((n for n, word in enumerate(words) if word.split("=")[0] == FROM), None)
    verb = load().get(words[0]) if words else None
    if at is None or verb is None or verb.source_at is None or "--" in words[:at]:
        return words
    _, equals, source = words[at].partition("=")
    rest = words[:at] + words[at + 1 :]
    if not equals:
        if at >= len(rest):
            raise UsageError(f"{FROM} needs a source: a device, a recording or a crash bundle")
        source = rest.pop(at)
    plain = [n for n, word in enumerate(rest) if not word.startswith("-")]
    if len(plain) <= verb.source_at:
        return [*rest, source]  # argparse reports the missing argument
    place = plain[verb.source_at] + 1
    return [*rest[:place], source, *rest[place:]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; return its exit code. Only a bug in ugpu produces a traceback."""
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
        arguments = parser().parse_args(_source_in_place(_verb_first(words)) or ["--help"])
        out.as_json = arguments.json  # the option may have been the script's
        levels = (config().log_level, "info", "debug", "trace")
        handler = configure(levels[min(arguments.verbose, 3)])
        return REGISTERED[arguments.verb].run(arguments, out)
    except SystemExit as end:  # argparse, after --help
        return int(end.code or 0)
    except UgpuError as error:
        return _failed(error, out)
    except OSError as error:  # a file named by the user, or an access that the system denies
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or error
        return _failed(HostError(str(what)), out)
    except KeyboardInterrupt:
        print("ugpu: interrupted", file=sys.stderr)
        return 130
    finally:
        if handler is not None:
            remove(handler)


def _failed(error: UgpuError, out: Output) -> int:
    Console(stderr=True, highlight=False, soft_wrap=True).print(
        Text.assemble("ugpu: ", (type(error).__name__, "bold red"), f": {lines(str(error))}")
    )
    out.result({"error": type(error).__name__, "message": str(error), **error.facts})
    return 2 if isinstance(error, UsageError) else 1


if __name__ == "__main__":
    sys.exit(main())
