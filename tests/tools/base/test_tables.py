"""Tables on screens of 80 and 40 columns, in a pipe, and in colour."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.cells import cell_len
from rich.console import Console

from ugpu.tools.base import tables
from ugpu.tools.service.top.table import COLUMNS

FAULT = "page fault at 0x7f0000001000 by a read of kernel elementwise_1f3a, wave 3 of group 17"
BUNDLES = [
    (
        str(number),
        "2026-11-28T05:50:12Z",
        "virtual:navi31",
        "PageFault",
        "120 KiB",
        f"{FAULT} {FAULT}",
    )
    for number in (1, 2)
]
CARD = (
    "pci:0000:03:00.0", "ok", "97 %", "312.5 W", "71 °C", "3", "20.1 GiB / 24 GiB", "12",
    "train.py (471100)", "1234", "2304 MHz", "0",
)  # fmt: skip


def shown(width: int, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    text = io.StringIO()
    console = Console(
        file=text, width=width, force_terminal=True, color_system=None, highlight=False,
        soft_wrap=True,
    )  # fmt: skip
    tables.show(console, columns, rows)
    return text.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_line_is_longer_than_the_screen_and_nothing_is_lost(width: int) -> None:
    columns = ("", "when", "device", "error", "size", "message")
    for names, rows in ((columns, BUNDLES), (COLUMNS, [CARD, CARD])):
        lines = shown(width, names, rows)
        assert max(cell_len(line.rstrip()) for line in lines) <= width
        flat = "".join("".join(lines).split())
        for row in rows:
            for cell in row:
                assert "".join(cell.split()) in flat or width > 80


def test_a_bundle_takes_a_few_lines() -> None:
    lines = shown(80, ("", "when", "device", "error", "size", "message"), BUNDLES)
    assert len(lines) <= 5 * len(BUNDLES)


def test_a_device_of_top_is_complete_at_80_columns() -> None:
    lines = shown(80, COLUMNS, [CARD])
    text = "\n".join(lines)
    assert len(lines) <= 3
    assert "power 312.5 W" in text and "temp 71 °C" in text and "errors 3" in text


def test_a_table_that_fits_is_aligned() -> None:
    lines = shown(80, ("device", "state"), [("cpu", "ok"), ("virtual:navi31", "failed")])
    assert [line.rstrip() for line in lines] == [
        "device          state",
        "cpu             ok",
        "virtual:navi31  failed",
    ]


def test_a_pipe_gets_no_spaces_at_the_ends_of_lines() -> None:
    text = io.StringIO()
    console = Console(file=text, width=4096, highlight=False, soft_wrap=True)
    tables.show(console, ("device", "facts"), [("cpu", "x" * 200), ("other", "")])
    assert text.getvalue() == f"device  facts\ncpu     {'x' * 200}\nother\n"


@pytest.mark.parametrize(("plain", "escapes"), [("", True), ("1", False)])
def test_colour_where_the_terminal_has_it(
    plain: str, escapes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", plain)
    text = io.StringIO()
    console = Console(file=text, width=80, force_terminal=True, highlight=False)
    tables.show(console, ("device", "state"), [("cpu", "failed")])
    assert ("\x1b[1;31mfailed" in text.getvalue()) is escapes
