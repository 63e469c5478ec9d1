"""Bundles of evidence: complete or not there, bounded, no personal data in them, read with care."""

from __future__ import annotations

import contextlib
import io
import json
import os
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ugpu.hcq.device.crash import Keeper
from ugpu.hcq.disk import bundle
from ugpu.hcq.disk.bundle import Evidence
from ugpu.hcq.errors import BadArgument, DeviceHang, PageFault, UgpuError

FAULT = PageFault("card: a write faulted", address=0x1234000, access="write", kernel="store")


def evidence(**parts: object) -> Evidence:
    made = Evidence()
    for name, content in parts.items():
        made.take(f"{name}.json", lambda content=content: content)  # type: ignore[misc]
    return made


def test_what_was_written_is_read(tmp_path: Path) -> None:
    made = evidence(queues=[{"name": "compute 0.0"}])
    made.take("program.bin", lambda: b"\x00\x01")
    made.take("waves.json", lambda: 1 / 0)
    path = bundle.write(tmp_path / "kept", "pci:0000:03:00.0", FAULT, made, now=0.0)
    assert path.name.startswith("19700101T000000Z-pci-0000-03-00-0-PageFault-")
    found = bundle.read(path)
    assert json.loads(found.parts["queues.json"]) == [{"name": "compute 0.0"}]
    assert found.parts["program.bin"] == b"\x00\x01"
    assert found.manifest["missing"] == {"waves.json": "ZeroDivisionError: division by zero"}
    assert found.manifest["error"] == {
        "class": "PageFault",
        "message": "card: a write faulted",
        "facts": {"address": 0x1234000, "access": "write", "kernel": "store"},
    }
    assert path.stat().st_mode & 0o777 == 0o600


def test_personal_data_stays_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada.lovelace")
    error = PageFault("in /home/ada.lovelace/secret/a.py", source_line="/home/ada.lovelace/a.py:3")
    path = bundle.write(tmp_path, "cpu", error, evidence(log="read /home/ada.lovelace/x"))
    found = bundle.read(path)
    text = json.dumps(found.manifest) + found.parts["log.json"].decode()
    assert "lovelace" not in text and "~/secret/a.py" in text and "~/a.py:3" in text
    assert os.uname().nodename not in json.dumps(found.manifest["versions"])


def test_a_bundle_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "LARGEST", 40_000)
    made = evidence(small="x")
    made.take("noise.bin", lambda: os.urandom(60_000))
    made.take("less.bin", lambda: os.urandom(20_000))
    made.take("huge.bin", lambda: bytes(5 << 20))
    path = bundle.write(tmp_path, "cpu", FAULT, made)
    assert path.stat().st_size <= 40_000
    found = bundle.read(path)
    assert set(found.parts) == {"small.json", "less.bin"}
    missing = found.manifest["missing"]
    assert isinstance(missing, dict) and set(missing) == {"noise.bin", "huge.bin"}


def test_the_first_and_the_newest_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MOST", 12)
    written = [bundle.write(tmp_path, "cpu", FAULT, Evidence(), now=60.0 * at) for at in range(20)]
    (tmp_path / "notes.txt").write_text("not ours")
    assert bundle.bundles(tmp_path) == written[:8] + written[-4:]


@pytest.mark.parametrize("call", ["open", "link", "unlink"])
def test_a_failed_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real = getattr(os, call)
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o700)

    def refused(*arguments: object, **keywords: object) -> object:
        if str(arguments[0]).startswith("new-") and call != "unlink":
            raise OSError(28, "No space left on device")
        return real(*arguments, **keywords)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, refused)
        if call == "unlink":
            bundle.write(folder, "cpu", FAULT, Evidence())
        else:
            with pytest.raises(OSError, match="No space left"):
                bundle.write(folder, "cpu", FAULT, Evidence())
    assert len(list(folder.iterdir())) == (1 if call == "unlink" else 0)


@given(st.binary(max_size=300))
def test_what_is_no_bundle_is_refused(content: bytes) -> None:
    path = Path(os.environ["UGPU_CACHE"]).parent / "no-bundle"
    path.write_bytes(content)
    with pytest.raises(BadArgument):
        bundle.read(path)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_bundle_is_read_or_refused(place: int, change: int) -> None:
    folder = Path(os.environ["UGPU_CACHE"]).parent
    whole = bytearray(bundle._packed("cpu", FAULT, {"a.json": b"[1, 2]"}, {}, 0.0))
    whole[place % len(whole)] ^= change
    path = folder / "damaged"
    path.write_bytes(whole)
    with contextlib.suppress(BadArgument):
        bundle.read(path)


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(bundle.MANIFEST, b"{}" + b" " * (65 << 20))
    path = tmp_path / "bomb"
    path.write_bytes(into.getvalue())
    with pytest.raises(BadArgument, match="unpacked size is"):
        bundle.read(path)


def test_only_the_first_failure_is_kept_until_it_is_mended(tmp_path: Path) -> None:
    keeper = Keeper("cpu", tmp_path)
    first, second, third = (UgpuError(text) for text in ("first", "second", "third"))
    asked: list[UgpuError] = []

    def gather(error: UgpuError) -> Evidence:
        asked.append(error)
        return Evidence()

    keeper.keep(first, gather)
    keeper.keep(second, gather)
    assert asked == [first] and len(bundle.bundles(tmp_path)) == 1
    assert first.facts["bundle"] == str(keeper.kept) and "bundle" not in second.facts
    keeper.mended()
    keeper.keep(third, gather)
    assert asked == [first, third] and len(bundle.bundles(tmp_path)) == 2


def test_evidence_that_cannot_be_had_does_not_hide_the_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def gather(error: UgpuError) -> Evidence:
        raise DeviceHang("and that hangs, too")

    error = UgpuError("the failure")
    Keeper("cpu", tmp_path).keep(error, gather)
    Keeper("cpu", tmp_path / ("a" * 300)).keep(error, lambda error: Evidence())
    assert error.facts == {} and "no bundle was written" in caplog.text
