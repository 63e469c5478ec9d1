"""What the resource manager says of copy engines: capabilities, physical engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.nvidia.rm_program import RmProgram, StatusError
from ugpu.virtual.nvidia.status import Status

COPY0 = 9
CAPS, MASK = "NV2080_CTRL_CMD_CE_GET_CAPS_V2", "NV2080_CTRL_CMD_CE_GET_CE_PCE_MASK"


@pytest.fixture
def program() -> Iterator[RmProgram]:
    with RmProgram(copy_engines=5) as made:
        made.open_client()
        made.open_device()
        yield made


def test_capabilities_as_recorded_on_an_h100(program: RmProgram) -> None:
    """Driver 580.159.04: GRCE and SHARED of 0 and 1, SHARED of 2 and 3, none of both of 4."""
    found = [
        bytes(program.control(program.subdevice, CAPS, ceEngineType=COPY0 + number).capsTbl)
        for number in range(5)
    ]
    assert [caps.hex() for caps in found] == ["e303", "e303", "e203", "e203", "e003"]


def test_each_copy_engine_has_physical_ones(program: RmProgram) -> None:
    masks = [
        program.control(program.subdevice, MASK, ceEngineType=COPY0 + number).pceMask
        for number in range(5)
    ]
    assert all(masks)
    assert masks[:2] == masks[2:4] and not masks[0] & masks[1]
    assert max(masks, key=int.bit_count) == masks[4]
    assert not any(mask & masks[4] for mask in masks[:4])


@pytest.mark.parametrize("name", [CAPS, MASK])
@pytest.mark.parametrize("engine", [0, 1, COPY0 - 1, COPY0 + 5])
def test_engines_that_are_none(program: RmProgram, name: str, engine: int) -> None:
    with pytest.raises(StatusError) as error:
        program.control(program.subdevice, name, ceEngineType=engine)
    assert error.value.status == Status.INVALID_ARGUMENT
