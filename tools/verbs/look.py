"""Verbs that look at devices: ls, info, smi."""

from __future__ import annotations

import argparse

from .. import devices
from .. import smi as sensors
from ..console import Output
from .verb import register

DEVICE = "a name that `ugpu ls` shows"


def _ls(parser: argparse.ArgumentParser) -> None:
    words = "then show the cards that arrive and depart"
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
