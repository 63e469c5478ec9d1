"""Facts of errors as people read them: amounts in decimal, addresses and words in hexadecimal."""

from __future__ import annotations

import pytest

from ugpu import hcq
from ugpu.hcq import errors
from ugpu.hcq.errors import BadArgument


def test_amounts_and_words() -> None:
    error = BadArgument(
        "beyond the buffer", size=65536, offset=4096, address=0x7F00_0000_1000, status=0xFFFF,
        count=1234, name="x", found=999, flag=True, negative=-5000,
    )  # fmt: skip
    assert str(error) == (
        "beyond the buffer (size=65536, offset=0x1000, address=0x7f0000001000, status=0xffff, "
        "count=1234, name=x, found=999, flag=True, negative=-0x1388)"
    )
    assert error.facts["size"] == 65536


def test_a_copy_beyond_a_buffer() -> None:
    with (
        hcq.open("cpu", threads=1) as device,
        device.alloc(65536) as buffer,
        pytest.raises(BadArgument) as caught,
    ):
        device.queue().copy(buffer, buffer, 131072)
    assert "size=131072, source=65536, destination=65536" in str(caught.value)


@pytest.mark.parametrize(
    "kind", [errors.MissingDependency, errors.AccessDenied, errors.NoKernel, errors.UnitTimeout]
)
def test_facts_are_shown_whatever_the_error_is_besides(kind: type[errors.UgpuError]) -> None:
    """ImportError, OSError and KeyError have ideas of their own of what their text is."""
    error = kind("it fails", remedy="do that")
    error.add_facts(stage="SMU")
    assert str(error) == "it fails (remedy=do that, stage=SMU)"
