"""Verbs for USB bridges: bridge."""

from __future__ import annotations

import argparse
from pathlib import Path

from ugpu.hcq.errors import UsageError
from ugpu.tools.base.console import Output
from ugpu.tools.verbs.verb import register

USAGE = """ugpu bridge flash NAME IMAGE [--backup FILE --no-way-back] [--configuration FILE]
       ugpu bridge info NAME
       ugpu bridge power NAME
       ugpu bridge uart TTY|FILE [--record FILE] [--lines N]
       ugpu bridge xdata NAME ADDRESS [SIZE] [--bank 1]"""
FORMS = """NAME is usb:0, usb:SERIAL or usb:PORT, from `ugpu ls`; the card must not be in use.

flash    write firmware into the bridge's flash and read it back; IMAGE must be for this bridge.
         FILE must be new and receives the old content. Without --backup nothing is written.
         --no-way-back: you accept that firmware which does not start may need a clip on the flash
         part, and that the enclosure may lose its USB4 and Thunderbolt modes
         --configuration: take the configuration from the backup of an interrupted write
info     show identity, firmware and the state of the link to the card
power    read volts, amperes and watts of the enclosure's sensor (INA231), if it has one
uart     show and explain the firmware's output on its serial line (921,600 baud) until Ctrl-C;
         --record stores it in a new file, which can be shown later with the same command
xdata    read bytes of the bridge's own registers; bank 1: those of its PHY and switch"""


def _bridge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("word", choices=("flash", "info", "power", "uart", "xdata"))
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("place", nargs="*", metavar="IMAGE | ADDRESS [SIZE]")
    parser.add_argument("--record", type=Path, metavar="FILE")
    parser.add_argument("--backup", type=Path, metavar="FILE")
    parser.add_argument("--no-way-back", action="store_true")
    parser.add_argument("--configuration", type=Path, metavar="FILE")
    parser.add_argument("--lines", type=int, metavar="N", help="exit after N lines")
    parser.add_argument("--bank", type=int, choices=(0, 1), default=0)


@register("debug", "show a USB bridge: identity, link, power, "
                   "registers; flash its firmware", _bridge, usage=USAGE,
          epilog=FORMS)  # fmt: skip
def bridge(arguments: argparse.Namespace, out: Output) -> int:
    from ugpu.tools.inspect import bridge as bridges

    place = arguments.place
    if arguments.word == "flash" and len(place) == 1:
        return bridges.flash(
            arguments.name, Path(place[0]), arguments.backup, arguments.configuration, out,
            no_way_back=arguments.no_way_back,
        )  # fmt: skip
    if arguments.word == "info" and not place:
        return bridges.info(arguments.name, out)
    if arguments.word == "power" and not place:
        return bridges.power(arguments.name, out)
    if arguments.word == "uart" and not place:
        return bridges.console(Path(arguments.name), arguments.record, arguments.lines, out)
    if arguments.word == "xdata" and len(place) in (1, 2):
        size = place[1] if len(place) == 2 else "1"
        return bridges.xdata(arguments.name, place[0], size, arguments.bank, out)
    raise UsageError(
        "expected info NAME, power NAME, uart TTY, flash NAME IMAGE or xdata NAME ADDRESS [SIZE]"
    )
