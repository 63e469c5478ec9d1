"""`ugpu bridge`: inspect a USB bridge itself, without the card behind it."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import IO, Any

from ugpu.hcq.errors import UsageError
from ugpu.hcq.state.clock import Clock
from ugpu.tools.base.console import Output
from ugpu.usbgpu.attach import by_name
from ugpu.usbgpu.bridge import firmwares, ina231
from ugpu.usbgpu.bridge.interface import LINK_UP, LTSSM, Bridge
from ugpu.usbgpu.firmware import update
from ugpu.usbgpu.firmware.flash import Flash
from ugpu.usbgpu.firmware.image import inspect
from ugpu.usbgpu.link import uart

_ROW = 16


def info(name: str, out: Output) -> int:
    """Show the bridge's identity and whether its link to the card is up."""
    bridge = by_name(_bare(name))
    try:
        facts = describe(bridge)
    finally:
        bridge.close()
    out.table(("bridge", ""), facts.items())
    out.result(facts)
    return 0


def describe(bridge: Bridge) -> dict[str, object]:
    """Return the identity that a bridge reports; takes one transfer."""
    usb = bridge.usb.identity
    state = bridge.read_xdata(LTSSM, 1)[0]
    return {
        "firmware": bridge.firmware,
        "protocol": firmwares.protocol(usb),
        "manufacturer": usb.manufacturer,
        "serial": usb.serial,
        "usb_id": f"{usb.vendor:04x}:{usb.product:04x}",
        "usb_port": usb.port,
        "usb_link_mbit_s": int(usb.speed),
        "pcie_ltssm": f"{state:#04x}",
        "pcie_link_up": state == LINK_UP,
    }


def xdata(name: str, address: str, size: str, bank: int, out: Output) -> int:
    """Show registers of the bridge."""
    start, count = _number("ADDRESS", address), _number("SIZE", size)
    bridge = by_name(_bare(name))
    try:
        data = bridge.read_xdata(start, count, bank)
    finally:
        bridge.close()
    for line in dump(start, data):
        out.say(line)
    out.result({"address": start, "bank": bank, "data": data.hex()})
    return 0


def power(name: str, out: Output) -> int:
    """Show the measurements of the enclosure's power sensor."""
    bridge = by_name(_bare(name))
    try:
        measured = ina231.read_power(bridge)
    finally:
        bridge.close()
    out.say(f"{measured.volts:.2f} V   {measured.amperes:.2f} A   {measured.watts:.1f} W")
    out.result({"volts": measured.volts, "amperes": measured.amperes, "watts": measured.watts})
    return 0


def flash(
    name: str, path: Path, backup: Path | None, configuration: Path | None, out: Output,
    *, no_way_back: bool = False,
) -> int:  # fmt: skip
    """Write a firmware image into the bridge's flash; without `backup`, only compare. no_way_back:
    see update.write."""
    data = _content(path)
    settings = b"" if configuration is None else _content(configuration)
    if backup is not None and not no_way_back:
        raise UsageError(f"{update.WARNING}; {update.WORD} writes nevertheless")
    bridge = by_name(_bare(name))
    part = Flash(bridge, Clock())
    try:
        image = inspect(data, bridge.usb.identity)
        out.say(f"image: {len(image.data)} bytes, CRC-32 {image.crc:08x}")
        part.open()
        plan = update.make_plan(part, image, settings)
        if not plan.blocks:
            out.say("the flash holds this image already")
        elif backup is None:
            out.say(f"{len(plan.blocks)} blocks of 64 KiB differ; --backup FILE writes them")
            out.say(f"warning: {update.WARNING}")
        else:
            with _new(backup, "xb") as kept:
                kept.write(plan.before)
            update.write(part, plan, out.say, no_way_back=no_way_back)
            out.say("written and read back; it runs once the enclosure was without power and USB")
    finally:
        part.close()
        bridge.close()
    written = bool(plan.blocks) and backup is not None
    out.result({"crc": f"{image.crc:08x}", "blocks": len(plan.blocks), "written": written})
    return 0


def console(path: Path, record: Path | None, most: int | None, out: Output) -> int:
    """Show the firmware's output on a serial line, live or from a recording."""
    shown: list[dict[str, object]] = []
    with contextlib.ExitStack() as stack:
        kept = None if record is None else stack.enter_context(_new(record))
        reader = uart.lines(path, stop=lambda: False)
        stack.callback(reader.close)
        for at, text in itertools.islice(reader, most):
            meaning = uart.decode(text)
            out.say(f"{at:12.6f}  {text}  {'; '.join(meaning)}".rstrip())
            shown.append({"seconds": at, "text": text, "meaning": meaning})
            if kept is not None:
                kept.write(uart.record(at, text))
                kept.flush()
    out.result(shown)
    return 0


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def _new(path: Path, mode: str = "x") -> IO[Any]:  # text or bytes, by `mode`
    try:
        return path.open(mode)
    except OSError as error:
        raise UsageError(f"{path} cannot be created: {error.strerror}") from error


def dump(start: int, data: bytes) -> list[str]:
    """Return lines of 16 bytes with their addresses."""
    return [
        f"{start + at:04x}  {data[at : at + _ROW].hex(' ')}" for at in range(0, len(data), _ROW)
    ]


def _bare(name: str) -> str:
    kind, colon, rest = name.partition(":")
    if not colon:
        return name
    if kind != "usb":
        raise UsageError(f"expected a name such as usb:0, got {name}")
    return rest


def _number(what: str, text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise UsageError(f"{what} must be a number such as 0xB450, got {text!r}") from None
