"""Hopper and Blackwell: the FSP's mailbox and the chain of trust; what is wrong is refused by name.
The script is tests/support/nvidia/gsp/gsp_fsp_script.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.nvidia.gsp.gsp_fsp_script import FspScript
from ugpu.virtual.nvidia.gsp.gpu import build_card
from ugpu.virtual.nvidia.gsp.options import CardOptions

MEMORY = 1 << 30
INVALID_STATE, NOT_FOUND, NOT_SUPPORTED, INVALID_DATA = 0x9E, 0x9F, 0xA0, 0xA1


@pytest.fixture(params=["gb202", "gh100"])
def script(request: pytest.FixtureRequest) -> Iterator[FspScript]:
    made = FspScript(build_card(request.param, CardOptions(memory=MEMORY)))
    yield made
    made.close()
    made.card.close()


def objections(script: FspScript) -> str:
    return "\n".join(script.card.violations)


def test_it_boots_unloads_and_boots_again_without_a_reset(script: FspScript) -> None:
    for _ in range(2):
        script.sent = script.pointer = script.sequence = 0
        script.events = []
        script.boot()
        assert 0x1002 not in [message.function for message in script.events]
        script.unload()
    assert script.card.violations == [] and script.card.registers.unknown == {}


def test_the_gsp_is_locked_until_it_is_released(script: FspScript) -> None:
    assert script.read(0x110040) & 0xFFFF_FF00 == 0xBADF_4100
    script.write(0x110040, 5)
    script.boot()
    assert script.read(0x110040) == 0


MESSAGES: dict[str, tuple[Callable[[FspScript], object], int, str]] = {
    "version": (lambda s: s.cot.update(version=7), INVALID_DATA, "version must be"),
    "size": (lambda s: s.cot.update(size=859), INVALID_DATA, "size 860; are"),
    "frts": (lambda s: s.cot.update(frts=0x100000), INVALID_DATA, "below the end of memory"),
    "frts size": (lambda s: s.cot.update(frts_size=0), INVALID_DATA, "below the end of memory"),
    "system memory": (lambda s: s.cot.update(frts_sysmem=0x1000, frts_sysmem_size=1),
                      NOT_SUPPORTED, "FRTS in host memory"),
    "fmc": (lambda s: s.cot.update(fmc=0xDEAD000), NOT_FOUND, "the FMC cannot be read"),
    "hash": (lambda s: s.cot.update(hash=bytes(48)), INVALID_DATA, "hash does not match"),
    "key": (lambda s: s.cot.update(key=b"x" * 97), INVALID_DATA, "public key is not"),
    "signature": (lambda s: s.cot.update(signature=bytes(96)), INVALID_DATA, "no signature"),
    "content": (lambda s: s.image_of_fmc.view.__setitem__(99, 1), INVALID_DATA, "hash does not"),
    "sequence": (lambda s: setattr(s, "heads", (s.heads[0] | 1 << 28, s.heads[1])), INVALID_DATA,
                 "packet 1, expected 0"),
    "vendor": (lambda s: setattr(s, "heads", (s.heads[0], 0x1400_007E)), INVALID_DATA,
               "NVDM header"),
    "type": (lambda s: setattr(s, "heads", (s.heads[0], s.heads[1] + (2 << 24))), NOT_SUPPORTED,
             "NVDM type 0x16"),
}  # fmt: skip


@pytest.mark.parametrize("what", MESSAGES)
def test_the_fsp_refuses_a_message(script: FspScript, what: str) -> None:
    spoil, error, words = MESSAGES[what]
    script.power_on()
    script.layout()
    script.arguments()
    spoil(script)
    assert script.trust() == error
    assert words in objections(script) and not script.card.gsp.active


PARAMETERS: dict[str, tuple[Callable[[FspScript], object], str]] = {
    "target": (lambda s: s.params.update(target=0), "targets must be 1 or 2"),
    "size": (lambda s: s.params.update(size=0x80), "gspRmDescSize must be"),
    "no firmware": (lambda s: s.params.update(is_rm=0), "bIsGspRmBoot 0"),
    "magic": (lambda s: s.meta.update(magic=0), "magic must be"),
    "heap": (lambda s: s.meta.update(heap_size=1 << 20), "gspFwHeapSize 0x100000"),
    "other heap": (lambda s: s.meta.update(other_size=0x100000), "nonWprHeapSize must be"),
    "pmu": (lambda s: setattr(s, "pmu", 0x1000), "pmuReservedSize must be"),
    "offsets": (lambda s: s.meta.update(start=0x100000), "offsets must be 0"),
    "image": (lambda s: s.meta.update(image=0xDEAD000), "cannot read"),
    "content": (lambda s: s.image.view.__setitem__(99, 1), "does not match the content"),
}


@pytest.mark.parametrize("what", PARAMETERS)
def test_the_fmc_refuses_its_parameters_by_the_mailbox(script: FspScript, what: str) -> None:
    spoil, words = PARAMETERS[what]
    script.power_on()
    script.layout()
    script.arguments()
    spoil(script)
    assert script.trust() == 0  # the FSP itself has accepted the FMC
    assert words in objections(script) and not script.card.gsp.active
    while script.read(0x1100F4) >> 8 == 0xBADF41:
        pass
    assert script.read(0x110040) not in (0, 0xFFFF_FFFF) and script.read(0x1100F4) >> 13 & 1


def test_a_second_message_while_the_gsp_runs_is_refused(script: FspScript) -> None:
    script.boot()
    assert script.trust() == INVALID_STATE
    assert "the GSP runs already" in objections(script)
