"""Register writes that travel together: fewer messages, and the chip sees the same writes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from tests.support.amd.am_navi31 import build_chip
from tests.support.pci.vfio_user_served import served
from ugpu.am.chips.navi31.facts import FACTS as NAVI31
from ugpu.am.device.device import open_device
from ugpu.hcq.find.registry import Attachment
from ugpu.hcq.transport.vfio_user.client import VfioUserTransport
from ugpu.tools.control.serve import write_firmware
from ugpu.virtual.amd.bus.served import ServedChip
from ugpu.virtual.amd.options import ChipOptions


class Unbatched(VfioUserTransport):
    """Each register write in a message of its own."""

    def batch(self) -> AbstractContextManager[None]:
        return nullcontext()


def boot(
    kind: type[VfioUserTransport], firmware: Path, patch: pytest.MonkeyPatch
) -> tuple[list[tuple[int, int]], int]:
    """What was written to the chip's registers in a cold boot, and the messages it took."""
    chip = build_chip(ChipOptions(vram=256 << 20))
    writes: list[tuple[int, int]] = []
    write = chip.write_register

    def note(index: int, value: int) -> None:
        writes.append((index, value))
        write(index, value)

    patch.setattr(chip, "write_register", note)
    with served(ServedChip(chip)) as server:
        transport = kind(str(server.path))
        with open_device("served", Attachment(transport), firmware=firmware):
            transport.present()  # an answer: all writes before it have arrived
            done, messages = list(writes), transport.messages
    assert chip.violations == []
    chip.close()
    return done, messages


def test_a_boot_in_batches_is_the_same_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_firmware(NAVI31, tmp_path)
    writes, messages = boot(VfioUserTransport, tmp_path, monkeypatch)
    plain_writes, plain_messages = boot(Unbatched, tmp_path, monkeypatch)
    assert writes == plain_writes
    assert len(writes) > 400
    assert messages < plain_messages - 200
