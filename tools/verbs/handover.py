"""Verbs that hand devices over: bind, unbind, eject, reset, serve."""

from __future__ import annotations

import argparse
from pathlib import Path

from ugpu.hcq.state.ladder import Level
from ugpu.tools.base.console import Output
from ugpu.tools.control import pci
from ugpu.tools.verbs.verb import register


def _card(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", help="a device of `ugpu ls`, e.g. pci:0000:03:00.0")
    parser.add_argument("--dry-run", action="store_true", help="show the steps, change nothing")


def _handed(arguments: argparse.Namespace, out: Output) -> int:
    return pci.run(arguments.verb, arguments.device, out, dry_run=arguments.dry_run)


for _name, _help in pci.VERBS.items():
    register("hand over", _help, _card, name=_name)(_handed)


def _reset(parser: argparse.ArgumentParser) -> None:
    levels = ", ".join(level.label for level in Level)
    parser.add_argument("--to", metavar="RUNG", help=f"use only this rung: {levels}")
    _card(parser)


@register("hand over", "recover a device by the mildest reset that works", _reset)
def reset(arguments: argparse.Namespace, out: Output) -> int:
    # Loads the proof that a device works, which other verbs do not need.
    from ugpu.tools.control import reset as resets

    return resets.run(arguments.device, out, to=arguments.to, dry_run=arguments.dry_run)


def _serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vfio-user", required=True, metavar="SOCKET", help="socket to listen on")
    parser.add_argument(
        "--firmware", metavar="DIR", help=("folder for its firmware images; default: a new folder")
    )
    parser.add_argument("--vram", type=float, metavar="GIB", help="default: as on its boards")
    parser.add_argument("--map-vram", action="store_true", help="clients map VRAM (for guests)")
    parser.add_argument("device", help="virtual:CHIP, an AMD chip of `ugpu ls`")


@register("hand over", "serve a virtual chip to other processes by vfio-user", _serve)
def serve(arguments: argparse.Namespace, out: Output) -> int:
    # Loads the model of the chip, which other verbs do not need.
    from ugpu.tools.control import serve

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
