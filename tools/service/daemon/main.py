"""The `ugpud` command: serve devices in the foreground, and manage tokens.

Exit codes: 0 stopped on request; 1 the host prevents it from running; 2 wrong usage or
configuration.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from ugpu.hcq.errors import BadArgument, UgpuError, UsageError
from ugpu.hcq.state.log import configure, remove
from ugpu.hcq.state.text import lines
from ugpu.nv.code.assemble import assemble_apart
from ugpu.tools.service.daemon.clients.leases import State
from ugpu.tools.service.daemon.clients.places import raise_limit
from ugpu.tools.service.daemon.clients.tokens import ROLES, Tokens
from ugpu.tools.service.daemon.config import Settings, read
from ugpu.tools.service.daemon.daemon import Daemon
from ugpu.tools.service.daemon.listen import Listeners
from ugpu.tools.service.daemon.outlets import journal
from ugpu.tools.service.daemon.outlets.later import Later
from ugpu.tools.service.daemon.outlets.outlets import Outlet, outlets

SWITCH_S = 1e-3  # after which a busy thread lets another one run: a new client does not wait for it
_TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    arguments = _parser().parse_args(argv)
    handler: logging.Handler | None = None
    try:
        level = "debug" if arguments.verbose else "info"
        handler = configure(level)
        settings = read(arguments.config)
        if journal.wanted(settings.log, os.environ):
            remove(handler)
            handler = configure(level, handler=journal.JournalHandler())
        if arguments.what == "token":
            return _token(arguments, settings)
        if not isinstance(handler, journal.JournalHandler):  # which never blocks
            remove(handler)
            handler = configure(level, handler=Later(handler))
        return serve(settings)
    except UgpuError as error:
        print(f"ugpud: {type(error).__name__}: {lines(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    finally:
        if handler is not None:
            remove(handler)
            handler.close()


def serve(settings: Settings) -> int:
    """Boot the devices and serve until SIGTERM or SIGINT."""
    raise_limit()
    assemble_apart()
    sys.setswitchinterval(SWITCH_S)
    daemon = Daemon(settings)
    listeners = Listeners(settings, daemon.serve, os.environ)
    shown: list[Outlet] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        listeners.stop()

    former = {
        number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        shown.extend(outlets(settings, daemon))
        with daemon:
            for outlet in shown:
                outlet.start()
            daemon.wait_until_booted()
            # What stays is never searched for garbage again, which takes 50 ms.
            gc.collect()
            gc.freeze()
            for owned in daemon.owned:
                card = owned.card
                good = card.state in (State.READY, State.LEASED)
                print(f"{card.name}: {'ready' if good else card.reason}", flush=True)
            print(f"ugpud listens at {settings.socket}", flush=True)
            if listeners.port:
                print(f"ugpud listens on port {listeners.port} with TLS", flush=True)
            for outlet in shown:
                print(outlet.shown, flush=True)
            listeners.run()
    finally:
        for outlet in shown:
            outlet.close()
        listeners.close()
        for number, handler in former.items():
            signal.signal(number, handler)
    return 0


def _token(arguments: argparse.Namespace, settings: Settings) -> int:
    tokens = Tokens(settings.state / "tokens.json")
    if arguments.do == "create":
        expires = 0.0 if arguments.expires is None else time.time() + _duration(arguments.expires)
        name = arguments.name or f"token-{time.strftime('%Y%m%d-%H%M%S')}"
        print(tokens.create(name, arguments.role, arguments.device, expires))
    elif arguments.do == "revoke":
        tokens.revoke(arguments.name)
    else:
        for token in tokens.listed():
            print("  ".join(f"{key}={value}" for key, value in token.items()))
    return 0


def _duration(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if match is None:
        raise BadArgument(f"--expires: expected a time such as 30d or 12h, got {text!r}")
    return float(int(match[1]) * _TIMES[match[2]])


def _parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="ugpud", description="Own the GPUs of this machine and lease them (docs/daemon.md)."
    )
    top.add_argument("--config", type=Path, metavar="FILE", help="default: /etc/ugpud/ugpud.toml")
    top.add_argument("-v", "--verbose", action="store_true", help="log each lease")
    verbs = top.add_subparsers(dest="what", metavar="token")
    token = verbs.add_parser("token", help="tokens for clients behind TLS")
    what = token.add_subparsers(dest="do", required=True)
    create = what.add_parser("create", help="print a new token, once")
    create.add_argument("--name", default="", help="name of the token")
    create.add_argument("--role", choices=ROLES, default="use")
    create.add_argument("--device", default="*", metavar="PATTERN", help="devices that it covers")
    create.add_argument("--expires", metavar="TIME", help="such as 30d or 12h; default: never")
    what.add_parser("ls", help="list the tokens")
    revoke = what.add_parser("revoke", help="remove a token")
    revoke.add_argument("name")
    return top


if __name__ == "__main__":
    sys.exit(main())
