"""Verbs that show devices: ls, info, smi, top, metrics."""

from __future__ import annotations

import argparse
from pathlib import Path

from ugpu.tools.base.console import Output
from ugpu.tools.inspect import devices
from ugpu.tools.inspect import smi as sensors
from ugpu.tools.verbs.verb import register

DEVICE = "a name that `ugpu ls` shows"


def _ls(parser: argparse.ArgumentParser) -> None:
    words = "then report cards that are added or removed"
    parser.add_argument("--watch", action="store_true", help=words)


@register("look", "list the devices that can be opened", _ls)
def ls(arguments: argparse.Namespace, out: Output) -> int:
    status = devices.run_ls(out)
    return devices.run_watch(out) if arguments.watch else status


@register("look", "show device identity, firmware versions and sensor readings",
          lambda parser: parser.add_argument("device", help=DEVICE))  # fmt: skip
def info(arguments: argparse.Namespace, out: Output) -> int:
    return devices.run_info(arguments.device, out)


def _smi(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("devices", nargs="*", help="default: every GPU of this machine")


@register("look", "show the sensors of all GPUs side by side", _smi)
def smi(arguments: argparse.Namespace, out: Output) -> int:
    return sensors.run(arguments.devices, out)


def _power(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", metavar="WATTS",
                        help="set it until the card is reset: 100W, or default")  # fmt: skip
    parser.add_argument("device", help=DEVICE)


@register("look", "show or set the power limit of a device", _power)
def power(arguments: argparse.Namespace, out: Output) -> int:
    from ugpu.tools.control import power as limits

    return limits.run(arguments.device, out, limit=arguments.limit)


def _top(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="print the devices and return")
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS",
                        help="time between updates; default: %(default)s")  # fmt: skip
    parser.add_argument("--daemon", nargs="?", const="", metavar="WHERE",
                        help="the devices of a ugpud: a socket, or tls://HOST[:PORT]")  # fmt: skip


@register("look", "monitor the devices that processes have open", _top)
def top(arguments: argparse.Namespace, out: Output) -> int:
    from ugpu.tools.service.top.run import run

    return run(
        out, once=arguments.once, interval_s=arguments.interval, daemon=arguments.daemon
    )  # fmt: skip


def _metrics(parser: argparse.ArgumentParser) -> None:
    from ugpu.tools.service.metrics.run import FILES, LISTEN

    add = parser.add_argument
    add("--listen", default=LISTEN, metavar="ADDRESS:PORT", help="default: %(default)s")
    add("--once", action="store_true", help="print the metrics and return")
    add("--textfile", type=Path, metavar="FILE", help="write the metrics to FILE for node_exporter")
    add(
        "--interval",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="time between writes of --textfile; default: %(default)s",
    )
    add(
        "--expect",
        action="append",
        default=[],
        metavar="DEVICE",
        help="a device that must be open; may be repeated",
    )
    add("--daemon", nargs="?", const="", metavar="WHERE",
        help="also the cards and leases of a ugpud: a socket, or tls://HOST[:PORT]")  # fmt: skip
    add("--compat", choices=["dcgm"], help="also export metrics under dcgm-exporter's names")
    add("--print", choices=sorted(FILES), dest="file",
        help="print the alert rules for Prometheus or the dashboard for Grafana")  # fmt: skip


@register("look", "serve the telemetry of all open devices to Prometheus", _metrics)
def metrics(arguments: argparse.Namespace, out: Output) -> int:
    from ugpu.tools.service.metrics.run import run, write_file

    if arguments.file:
        return write_file(arguments.file, out)
    return run(
        out, listen=arguments.listen, once=arguments.once, textfile=arguments.textfile,
        interval_s=arguments.interval, expected=arguments.expect, dcgm=arguments.compat == "dcgm",
        daemon=arguments.daemon,
    )  # fmt: skip
