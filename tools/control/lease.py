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
    found = connection.call("leases").arguments[0]
    for each in devices:
        reason = f": {one_line(each['reason'])}" if each["reason"] else ""
        labels = one_line(", ".join(each["labels"]))
        state = each["state"] + (", resting" if each.get("resting") else "")  # missing: older ugpud
        name, history = one_line(each["name"]), _history(each["history"])
        out.say(f"{name:<24} {state}{reason}  {labels}{history}")
        for trouble in each.get("troubles", {}).values():
            out.say(f"  {one_line(trouble)}")
    for trouble in {each["trouble"] for each in devices} - {""}:
        out.say(f"history is not written: {one_line(trouble)}")
    for each in found["leases"]:
        out.say(
            f"lease {each['lease']}: {one_line(each['device'])}, {each['kind']}, "
            f"{one_line(each['holder'])}, "
            f"held {each['held_s']:.0f} s, {each['left_s']:.0f} s left"
        )
    for number, each in enumerate(found["waiting"], 1):
        out.say(
            f"waiting {number}: {one_line(each['device'])}, {each['kind']}, "
            f"{one_line(each['holder'])}, "
            f"priority {each['priority']}, {each['left_s']:.0f} s more"
        )
    out.result({"devices": devices, **found})
    return 0


def _history(found: dict[str, float | None]) -> str:
    """Return a short text on a card's past failures; empty if there were none."""
    if not found["failures"]:
        return ""
    parts = ["1 failure" if found["failures"] == 1 else f"{found['failures']} failures"]
    for key, title in (("mtbf_s", "MTBF"), ("mttr_s", "MTTR")):
        value = found[key]
        if value is not None:
            parts.append(f"{title} {value:.0f} s")
    flake = found["flake_ratio"]
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
