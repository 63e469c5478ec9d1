"""Recordings as text: what is read, what is refused, how they decode and compare."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ugpu.hcq.errors import BadArgument
from ugpu.nv import abi
from ugpu.tools.cli import main
from ugpu.tools.debug.sniff.compare import differences, steps
from ugpu.tools.debug.sniff.decode import Decoder, lines, shown
from ugpu.tools.debug.sniff.recording import Call, Recording, header, parse, read

TABLE = abi.select("580.142")
ALLOC = TABLE.request("NV_ESC_RM_ALLOC")
CONTROL = TABLE.request("NV_ESC_RM_CONTROL")


def _line(**facts: Any) -> dict[str, Any]:
    base = {"call": "ioctl", "path": "/dev/nvidiactl", "time": 1.5, "pid": 9, "thread": 9}
    return {**base, "result": 0, "errno": 0, **facts}


def _alloc(root: int, parent: int, new: int, number: int, status: int = 0, **inner: int) -> Any:
    layout = TABLE.structs.NVOS64_PARAMETERS
    block = layout.new(hRoot=root, hObjectParent=parent, hObjectNew=new, hClass=number)
    block.pAllocParms = 0x7F00_0000_1000 + new * 0x1000
    before = bytes(block)
    block.status = status
    name = TABLE.parameters_of_class(number)
    blocks = []
    if name and inner:
        raw = bytes(TABLE.structs[name].new(**inner)).hex()
        size = TABLE.structs[name].size
        place = {"at": 16, "inside": -1, "address": block.pAllocParms, "size": size}
        blocks = [{**place, "before": raw, "after": raw}]
    return _line(fd=3, request=ALLOC, before=before.hex(), after=bytes(block).hex(), blocks=blocks)


def _run(client: int, device: int, *, flags: int = 0, status: int = 0) -> list[dict[str, Any]]:
    return [
        _line(call="open", result=3),
        _alloc(client, client, client, 0x41),
        _alloc(client, client, device, 0x80, hClientShare=client, flags=flags),
        _alloc(client, device, device + 1, 0x2080, status=status, subDeviceId=0),
        _line(call="close", fd=3),
    ]


def _text(rows: list[dict[str, Any]]) -> str:
    first = header("580.142", "preload", "/dev/nvidia", ["true"])
    return first + "".join(json.dumps(row) + "\n" for row in rows)


def _steps(rows: list[dict[str, Any]]) -> Any:
    return steps(Decoder(TABLE).all(parse(_text(rows))))


def test_a_recording_is_read() -> None:
    recording = parse(_text(_run(0xC1D00001, 0x5C000001)))
    assert (recording.driver, recording.backend, recording.command) == (
        "580.142",
        "preload",
        ["true"],
    )
    assert [call.kind for call in recording.calls] == ["open", "ioctl", "ioctl", "ioctl", "close"]
    assert recording.calls[2].blocks[0].size == 56


def test_a_line_that_was_cut_off_at_the_end_is_dropped() -> None:
    text = _text(_run(1, 2))
    assert len(parse(text[:-20]).calls) == 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "nothing\n",
        "[]\n",
        '{"ugpu-sniff": 2}\n',
        '{"ugpu-sniff": 1, "driver": 1, "backend": "", "prefix": ""}\n',
    ],
)
def test_what_is_no_recording_is_refused(text: str) -> None:
    with pytest.raises(BadArgument):
        parse(text)


@pytest.mark.parametrize(
    "change",
    [
        {"call": "ioctrl"},
        {"pid": "nine"},
        {"pid": True},
        {"before": "abc"},
        {"before": 12},
        {"blocks": {}},
        {"blocks": [[]]},
        {"blocks": [{"at": 1}]},
        {"time": "now"},
        {"time": 10**400},
        {"time": float("nan")},
        {"path": None},
        {"request": 1.5},
    ],
)
def test_a_bad_line_is_named(change: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match="line 3"):
        parse(_text([_line(call="open"), _line(**change), _line(call="open")]))


def test_nesting_is_refused() -> None:
    with pytest.raises(BadArgument, match="line 2 is not valid JSON"):
        parse(_text([]) + "[" * 100_000 + "\n{}\n")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="No such file"):
        read(tmp_path / "none")


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    for whole in (text, header("580.142", "x", "y", []) + text):
        with contextlib.suppress(BadArgument):
            parse(whole)


_REQUESTS = [TABLE.request(name) for name in TABLE.ioctls]


@given(
    st.sampled_from(_REQUESTS) | st.integers(0, 2**32 - 1),
    st.none() | st.binary(max_size=400),
    st.none() | st.binary(max_size=400),
    st.booleans(),
    st.integers(0, 600),
)
def test_any_bytes_decode_and_compare(
    request: int, before: bytes | None, after: bytes | None, exact: bool, size: int
) -> None:
    ioctl = TABLE.ioctl_of(request)
    if exact and ioctl and before:
        wanted = TABLE.structs[ioctl.struct].size
        before = (before * (wanted // len(before) + 1))[:wanted]
    line = _line(request=request, fd=3)
    line["before"] = before.hex() if before is not None else None
    line["after"] = after.hex() if after is not None else None
    block = {"at": 16, "inside": -1, "address": 1, "size": size}
    line["blocks"] = [{**block, "before": line["after"], "after": line["before"]}]
    recording = parse(_text([line, line]))
    decoded = Decoder(TABLE).all(recording)
    for each in decoded:
        assert list(lines(each, 0.0))
    assert list(differences(steps(decoded), steps(decoded))) == []


def test_a_call_is_shown_with_its_meaning() -> None:
    decoded = Decoder(TABLE).all(parse(_text(_run(0xC1D00001, 0x5C000001, status=0x1F))))
    text = list(lines(decoded[3], 1.0))
    assert text[0].endswith("RM_ALLOC NV20_SUBDEVICE_0 -> NV_ERR_INVALID_ARGUMENT")
    assert "             hObjectNew = 0x5c000002" in text
    assert "             status = 0 -> 0x1f" in text


def test_all_elements_of_a_call_that_takes_many_are_decoded() -> None:
    table = abi.select("580.142")
    layout = table.structs.nv_ioctl_card_info_t
    raw = bytearray(3 * layout.size)
    for number in range(3):
        layout.view(raw, number * layout.size).gpu_id = 0x100 + number
    request = table.request("NV_ESC_CARD_INFO") + (2 * layout.size << 16)
    call = Call("ioctl", "/dev/nvidiactl", 0, 0, 0.0, 1, 1, request=request, after=bytes(raw))
    own = Decoder(table).decode(call).own
    assert own is not None and own.after is not None
    assert [own.after[f"[{number}].gpu_id"] for number in range(3)] == [0x100, 0x101, 0x102]


def test_a_size_that_the_tables_do_not_have_is_remarked() -> None:
    short = _line(request=0xC010462A, before="00" * 16, after="00" * 16)
    decoded = Decoder(TABLE).decode(parse(_text([short])).calls[0])
    assert decoded.remarks == ("16 bytes were passed, NVOS54_PARAMETERS has 32",)
    assert decoded.own is not None
    assert decoded.own.before == {"bytes": bytes(16)}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "5"),
        (255, "0xff"),
        (b"GPU-1\0\0", "'GPU-1'"),
        (b"\x80\0\0", "80(+2 zeros)"),
        (b"\0\0", "2 zeros"),
        ((1, 0, 16, 0), "[1 0 0x10 +1 zeros]"),
        ((0, 0), "2 zeros"),
    ],
)
def test_values_are_shown(value: Any, text: str) -> None:
    assert shown(value) == text


def test_other_handles_are_no_difference() -> None:
    assert list(differences(_steps(_run(1, 2)), _steps(_run(0xC1D00001, 0x5C000001)))) == []


def test_another_object_and_another_flag_are_differences() -> None:
    left, right = _run(1, 2), _run(1, 2, flags=4)
    assert list(differences(_steps(left), _steps(right))) == [
        "  ~ nvidiactl: RM_ALLOC NV01_DEVICE_0",
        "      in NV0080_ALLOC_PARAMETERS.flags: zero | 4",
    ]
    fewer = [row for row in left if row is not left[3]]
    assert list(differences(_steps(left), _steps(fewer))) == [
        "  - nvidiactl: RM_ALLOC NV20_SUBDEVICE_0"
    ]
    assert list(differences(_steps(fewer), _steps(left))) == [
        "  + nvidiactl: RM_ALLOC NV20_SUBDEVICE_0"
    ]


def test_a_handle_of_another_parent_is_a_difference() -> None:
    wrong = _run(1, 2)
    wrong[3] = _alloc(1, 1, 3, 0x2080, subDeviceId=0)
    found = list(differences(_steps(_run(1, 2)), _steps(wrong)))
    assert any("hObjectParent: client#1.NV01_DEVICE_0#1 | client#1" in line for line in found)


def test_the_command_shows_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text(_text(_run(1, 2)), encoding="ascii")
    two.write_text(_text(_run(1, 2, flags=4)), encoding="ascii")
    assert main(["sniff", "show", str(one)]) == 0
    assert "RM_ALLOC NV01_DEVICE_0 -> NV_OK" in capsys.readouterr().out
    assert main(["sniff", "compare", str(one), str(one)]) == 0
    assert main(["sniff", "compare", str(one), str(two)]) == 1
    assert "zero | 4" in capsys.readouterr().out
    assert main(["sniff", "--json", "show", str(one)]) == 0
    assert json.loads(capsys.readouterr().out)["calls"][2]["status"] == 0
    assert main(["sniff", "show"]) == 2
    assert main(["sniff"]) == 2
    assert main(["sniff", "show", str(tmp_path / "none")]) == 2


def test_a_recording_without_calls_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "empty"
    path.write_text(_text([]), encoding="ascii")
    assert main(["sniff", "show", str(path)]) == 0
    assert "true (driver 580.142" in capsys.readouterr().out


def test_calls_are_kept_as_they_are() -> None:
    call = parse(_text([_line(call="mmap", fd=3, length=4096, access=3, offset=8)])).calls[0]
    assert call == Call(
        "mmap", "/dev/nvidiactl", 0, 0, 1.5, 9, 9, fd=3, length=4096, access=3, offset=8
    )
    assert Recording("1", "2", "3", []).calls == []
