"""What is kept of a firmware that failed: its crash report, logs, calls."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import pytest

from tests.nv.gsp.test_gsp_boot import booted, powered
from ugpu.hcq.disk import bundle
from ugpu.hcq.disk.bundle import Evidence
from ugpu.hcq.errors import FirmwareInvalid, FirmwareSilent, UgpuError
from ugpu.hcq.state.config import setting
from ugpu.nv.gsp.boot import evidence, init
from ugpu.nv.gsp.boot.start import Start
from ugpu.nv.gsp.rpc import crash
from ugpu.nv.gsp.rpc.calls import Calls
from ugpu.virtual.nvidia.gsp.card import Card

_PLACE, _SIZE = 0x400, 0x400
_SIGNATURE = int.from_bytes(b"LIBOS3.1", "big")


def packet(kind: int, words: list[int]) -> bytes:
    header = 0xDEAD | 1 << 16 | (len(words) - 1) << 22 | kind << 32
    return struct.pack(f"<{len(words) + 1}Q", header, *words)


REPORT = packet(0, [_SIGNATURE, 2 << 16, 0x1234, 3 << 16 | 5 << 8 | 2, 0xB << 32 | 1 << 4 | 2,
                    0x8000_1000, 0x77])  # fmt: skip
CSRS = packet(1, list(range(7)))
REGISTERS = packet(4, [0x11_0040 << 32 | 0xABC])


def crash_card(card: Card, begin: int = 0) -> None:
    """Put a report into the falcon's data memory, as the firmware would do."""
    data = REPORT + CSRS + REGISTERS
    for at, byte in enumerate(data):
        card.gsp.dmem[_PLACE + (begin + at) % _SIZE] = byte
    place = _PLACE | 0 << 6 | 1 << 3 | 2  # one unit of 1 KiB in DMEM
    end = (begin + len(data)) % _SIZE
    for number, word in enumerate((place, 0, end, begin)):
        card.gsp.registers[0x320 + 4 * number] = word
    card.gsp.registers[0x94] = 0xDEAD | 1 << 16 | 4 << 20


@pytest.mark.parametrize("begin", [0, 0x3F0, 0x3F8])
def test_a_report_is_read_also_if_it_wraps(begin: int) -> None:
    with powered() as card:
        running = booted(card)
        assert evidence.read_crash(running.firmware.start) == []
        crash_card(card, begin)
        found = evidence.read_crash(running.firmware.start)
        assert [each["kind"] for each in found] == ["report", "csr", "registers"]
        report = found[0]
        assert report["implementer"] == "LIBOS3.1"
        assert (report["cause"], report["reason"], report["mode"]) == ("panic", 0xB, "user")
        assert (report["partition"], report["ucode"], report["pc"]) == (2, 5, "0x80001000")
        assert found[1]["xcause"] == "0x5"
        assert found[2]["values"] == {"0x110040": 0xABC}
        assert "panic 0xb in user mode, partition 2, pc 0x80001000" in crash.summary(report)
        running.end(clean=True)


def test_a_start_whose_firmware_crashes_is_kept_in_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with powered() as card, setting("UGPU_CRASHES", str(tmp_path)):

        def crashes(start: Start, calls: Calls) -> None:
            crash_card(card)
            start.logs["LOGRM"].put(struct.pack("<4Q", 3, 0x11, 0x22, 0x33))
            raise FirmwareSilent("the GSP does not report GSP_INIT_DONE", **start.state())

        monkeypatch.setattr(init, "await_init", crashes)
        with pytest.raises(FirmwareSilent) as caught:
            booted(card)
        facts = caught.value.facts
        assert facts["stage"] == "init-done"
        assert "panic 0xb" in str(facts["crash"])
        kept = bundle.read(next(tmp_path.glob("*.zip")))
        parts = kept.parts
        assert json.loads(parts["log-LOGRM.json"]) == ["0x11", "0x22", "0x33"]
        assert json.loads(parts["crash.json"])[0]["cause"] == "panic"
        assert b"GSP_SET_SYSTEM_INFO" in parts["calls.txt"]
        assert b"MAILBOX0" in parts["accesses.txt"]
        assert json.loads(parts["firmware.json"])["release"] == "570.144"
        assert not card.wpr.touches(0, card.memory_size), "the way back was taken"
        monkeypatch.undo()
        booted(card).end(clean=True)


def test_a_call_that_is_not_answered_states_the_crash() -> None:
    with powered() as card:
        running = booted(card)
        calls = running.calls
        crash_card(card)
        with pytest.raises(FirmwareSilent) as caught:
            calls.await_event(0x1999, 0.01)
        assert "panic 0xb" in str(caught.value.facts["crash"])
        found = Evidence()
        evidence.gather(found, running.firmware.start, calls)
        assert {"accesses.txt", "calls.txt", "state.json", "crash.json"} <= set(found.parts)
        running.end(clean=True)


def test_logs_are_in_order_after_they_have_wrapped() -> None:
    with powered() as card:
        running = booted(card)
        pages = running.firmware.start.logs["LOGINTR"]
        count = pages.size // 8 - 1
        pages.put(struct.pack(f"<{count + 1}Q", count + 2, *range(count)))
        words = evidence.log_words(pages)
        assert (words[0], words[-1]) == ("0x2", "0x1")
        assert len(words) == count
        running.end(clean=True)


def test_reports_of_any_content_are_read_or_refused() -> None:
    chance = random.Random(7)
    for _ in range(3000):
        wayfinder = chance.choice(
            [chance.getrandbits(32), 0xDEAD | 1 << 16 | chance.getrandbits(3) << 20]
        )
        group = crash.scratch_group(wayfinder)
        assert group is None or 0 <= group < 4
        low, high, put, get = (chance.getrandbits(chance.choice([12, 32])) & ~7 for _ in range(4))
        try:
            place = crash.locate((low | chance.getrandbits(3), high, put, get))
        except FirmwareInvalid:
            continue
        data = crash.collect(place, lambda offset, size: chance.randbytes(size))
        assert len(data) <= place.size
        crash.packets(data)
    whole = REPORT + CSRS
    for _ in range(3000):
        noisy = bytearray(whole)
        for _ in range(chance.randrange(4)):
            noisy[chance.randrange(len(noisy))] ^= 1 << chance.randrange(8)
        for each in crash.packets(bytes(noisy[: chance.randrange(len(noisy))])):
            if "pc" in each:
                assert crash.summary(each)


def test_an_error_with_an_unreadable_report_is_still_raised() -> None:
    with powered() as card:
        running = booted(card)
        crash_card(card)
        card.gsp.registers[0x320] = 0x400 | 1 << 3 | 5  # no such memory
        facts = evidence.crash_fact(running.firmware.start)
        assert "cannot be read" in str(facts["crash"])
        try:
            evidence.read_crash(running.firmware.start)
        except UgpuError as error:
            assert isinstance(error, FirmwareInvalid)
        running.end(clean=True)
