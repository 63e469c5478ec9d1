"""`ugpu lease ls|take|release|quarantine|recover`: a client of ugpud for people and scripts."""

from __future__ import annotations

import argparse
import sys
import threading

from ugpu.hcq.remote.address import parse
from ugpu.hcq.remote.connection import Connection
from ugpu.hcq.remote.request import Grant, LeaseRequest, byte_count
from ugpu.hcq.remote.wire import Message
from ugpu.hcq.state.config import config
from ugpu.hcq.state.text import one_line
from ugpu.tools.base.console import Output


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Run the verb's second word; return the exit code."""
    with Connection(parse(arguments.daemon), config().token or None) as connection:
        if arguments.what == "ls":
            return _list(connection, out)
        if arguments.what == "release":
            connection.call("release", arguments.lease)
            out.say(f"lease {arguments.lease} ends")
            out.result({"released": arguments.lease})
            return 0
        if arguments.what == "quarantine":
            reason = " ".join(arguments.reason)
            names = connection.call("quarantine", arguments.device, reason).arguments[0]
            out.say(f"quarantined: {', '.join(names)}; `ugpu lease recover` ends it")
            out.result({"quarantined": names})
            return 0
        if arguments.what == "recover":
            names = connection.call("recover", arguments.device).arguments[0]
            out.say(f"recovering: {', '.join(names)}; see `ugpu lease ls`")
            out.result({"recovering": names})
            return 0
        return _take(connection, arguments, out)


def _list(connection: Connection, out: Output) -> int:
    devices = connection.call("devices").arguments[0]
    leases = connection.call("leases").arguments[0]
    for card in devices:
        reason = f": {one_line(card['reason'])}" if card["reason"] else ""
        labels = one_line(", ".join(card["labels"]))
        state = card["state"] + (", resting" if card.get("resting") else "")  # missing: older ugpud
        name, history = one_line(card["name"]), _history(card["history"])
        out.say(f"{name:<24} {state}{reason}  {labels}{history}")
        for trouble in card.get("troubles", {}).values():
            out.say(f"  {one_line(trouble)}")
    for trouble in {card["trouble"] for card in devices} - {""}:
        out.say(f"history is not written: {one_line(trouble)}")
    for lease in leases["leases"]:
        out.say(
            f"lease {lease['lease']}: {one_line(lease['device'])}, {lease['kind']}, "
            f"{one_line(lease['holder'])}, "
            f"held {lease['held_s']:.0f} s, {lease['left_s']:.0f} s left"
        )
    for number, request in enumerate(leases["waiting"], 1):
        out.say(
            f"waiting {number}: {one_line(request['device'])}, {request['kind']}, "
            f"{one_line(request['holder'])}, "
            f"priority {request['priority']}, {request['left_s']:.0f} s more"
        )
    out.result({"devices": devices, **leases})
    return 0


def _history(history: dict[str, float | None]) -> str:
    """Return a short text on a card's past failures; empty if there were none."""
    if not history["failures"]:
        return ""
    parts = ["1 failure" if history["failures"] == 1 else f"{history['failures']} failures"]
    for key, title in (("mtbf_s", "MTBF"), ("mttr_s", "MTTR")):
        value = history[key]
        if value is not None:
            parts.append(f"{title} {value:.0f} s")
    flake = history["flake_ratio"]
    if flake is not None:
        parts.append(f"{100 * flake:.2g}% of leases")
    return f"  ({', '.join(parts)})"


def _take(connection: Connection, arguments: argparse.Namespace, out: Output) -> int:
    """Hold a lease until Ctrl-C, or until the daemon ends it."""
    ended = threading.Event()
    reason: list[str] = []

    def on_event(event: Message | Exception) -> None:
        if isinstance(event, Message) and event.operation == "position":
            out.say(f"waiting, number {event.arguments[0]} in the queue")
        elif isinstance(event, Message) and event.operation == "ended":
            reason.append(event.arguments[0])
        elif isinstance(event, Exception):
            reason.append(str(event))
            ended.set()

    connection.on_event = on_event
    request = LeaseRequest(
        arguments.device,
        "transport" if arguments.transport else arguments.kind,
        byte_count(arguments.memory),
        arguments.priority,
        arguments.wait,
        arguments.limit,
    )
    reply = connection.call("lease", request.to_map(), limit_s=request.wait_s + 120.0)
    grant = Grant.from_map(reply.arguments[0])
    out.say(f"lease {grant.lease}: {grant.device} for {grant.limit_s:.0f} s; Ctrl-C ends it")
    if grant.socket:
        out.say(f"  UGPU_FIRMWARE={grant.firmware} ugpu demo --device vfio-user:{grant.socket}")
    out.result(
        {
            "socket": grant.socket,
            "firmware": grant.firmware,
            "lease": grant.lease,
            "device": grant.device,
            "limit_s": grant.limit_s,
        }
    )
    sys.stdout.flush()
    try:
        ended.wait()
    except KeyboardInterrupt:
        connection.call("release", None)
        return 0
    out.say(f"the lease ended: {one_line(reason[0])}")
    return 1
