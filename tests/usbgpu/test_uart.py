"""The bridge firmware's console: over a pseudo-terminal, and from recordings."""

from __future__ import annotations

import os
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ugpu.hcq.errors import BadArgument, LinkError
from ugpu.tools import cli
from ugpu.usbgpu.link import uart


@pytest.fixture
def line() -> Iterator[tuple[int, Path]]:
    """(the firmware's end, the name of ours)"""
    end, other = os.openpty()
    name = Path(os.ttyname(other))
    yield end, name
    os.close(other)
    os.close(end)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("[BOOT]", ["the firmware starts"]),
        ("[PCIe 78  UP Gen03 x02 CONNECTED]", ["PCIe link in L0, generation 3, 2 lanes"]),
        ("[PCIe 10 down Gen00 x00]", ["PCIe link in LTSSM state 0x10, generation 0, 0 lanes"]),
        ("[RST 04]", ["reset of the USB bus, event 0x04"]),
        ("[USB2 fallback]", ["SuperSpeed failed: the bridge goes on at 480 Mbit/s"]),
        ("[C 80 06 0012]", ["standard request 0x06 of type 0x80, 18 bytes"]),
        ("[UNHANDLED INT0 TYPE 20]", ["not handled: INT0 TYPE 0x20"]),
        ("[A][RST 00]", ["the host gives an address", "reset of the USB bus, event 0x00"]),
        ("something else", []),
    ],
)
def test_messages(text: str, meaning: list[str]) -> None:
    assert uart.decode(text) == meaning


def test_a_line_is_read_raw_and_cut_at_line_ends(line: tuple[int, Path]) -> None:
    end, name = line
    read = uart.lines(name, stop=lambda: False)
    os.write(end, b"\n[BOOT]\r\n[PCIe ")
    assert next(read)[1] == "[BOOT]"
    os.write(end, b"timeout]\n\xff\xfe\n")
    assert [next(read)[1] for _ in range(2)] == ["[PCIe timeout]", "��"]
    modes = termios.tcgetattr(end)
    assert modes[4] == modes[5] == termios.B921600 and not modes[3] & termios.ICANON
    read.close()


def test_noise_without_line_ends_is_cut(line: tuple[int, Path]) -> None:
    end, name = line
    read = uart.lines(name, stop=lambda: False)
    os.write(end, b"x" * 1000)
    assert len(next(read)[1]) > 512
    read.close()


def test_an_adapter_that_is_unplugged() -> None:
    end, other = os.openpty()
    name = Path(os.ttyname(other))
    os.close(other)
    read = uart.lines(name, stop=lambda: False)
    os.write(end, b"[A]\n")
    assert next(read)[1] == "[A]"
    os.close(end)
    with pytest.raises(LinkError, match=r"disappeared|closed"):
        next(read)


def test_it_ends_when_it_is_told_to(line: tuple[int, Path]) -> None:
    assert list(uart.lines(line[1], stop=lambda: True)) == []


@pytest.mark.parametrize("path", ["/nothing/here", "/dev/null"])
def test_what_is_no_serial_line(path: str) -> None:
    with pytest.raises(BadArgument):
        list(uart.lines(Path(path), stop=lambda: True))


PRINTED = st.text(st.characters(codec="ascii", categories=["L", "P", "Zs"]))


@given(st.lists(st.tuples(st.floats(0, 1e6), PRINTED)))
def test_recordings_come_back(entries: list[tuple[float, str]]) -> None:
    path = Path(f"/dev/shm/ugpu-uart-{os.getpid()}")
    try:
        path.write_text("".join(uart.record(at, text) for at, text in entries))
        read = list(uart.lines(path, stop=lambda: False))
    finally:
        path.unlink()
    assert [text for _, text in read] == [text for _, text in entries]
    assert all(abs(at - was) < 1e-5 for (at, _), (was, _) in zip(read, entries, strict=True))


def test_the_verb_shows_records_and_shows_again(
    line: tuple[int, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end, name = line
    os.write(end, b"[BOOT]\n[PCIe 78  UP Gen03 x02 CONNECTED]\nnoise\n")
    kept = tmp_path / "console"
    assert cli.main(["bridge", "uart", str(name), "--record", str(kept), "--lines", "3"]) == 0
    first = capsys.readouterr().out
    assert "[BOOT]  the firmware starts" in first and "generation 3, 2 lanes" in first
    assert cli.main(["bridge", "uart", str(kept)]) == 0
    assert capsys.readouterr().out == first
    assert cli.main(["bridge", "uart", str(kept), "--record", str(kept)]) != 0
    assert "cannot be created" in capsys.readouterr().err


def test_a_broken_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "console").write_text("1.0\t[A]\nno time\n")
    assert cli.main(["bridge", "uart", str(tmp_path / "console")]) != 0
    assert "line 2" in capsys.readouterr().err
