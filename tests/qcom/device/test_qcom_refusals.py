"""Errors of the kernel driver's calls: each number names who is at fault, and says what is gone."""

from __future__ import annotations

import errno
import os

import pytest

from ugpu.hcq.errors import (
    AccessDenied,
    BadArgument,
    ChipError,
    DeviceBusy,
    DeviceHang,
    DeviceLost,
    DriverRefused,
    NotSupported,
    OutOfMemory,
    UgpuError,
)
from ugpu.qcom.kernel_driver.interface import PAGE, refused, whole_pages

CASES: list[tuple[int, type[UgpuError], str]] = [
    (errno.EDEADLK, ChipError, "context was invalidated by a fault"),
    (errno.EPROTO, ChipError, "context was invalidated by a fault"),
    (errno.ENOMEM, OutOfMemory, "has no memory left"),
    (errno.ENOSPC, OutOfMemory, r"has no room \(other programs may hold it\) left"),
    (errno.ENODEV, DeviceLost, "does not answer"),
    (errno.ENXIO, DeviceLost, "does not answer"),
    (errno.EIO, DeviceLost, "does not answer"),
    (errno.EACCES, AccessDenied, "is not permitted"),
    (errno.EPERM, AccessDenied, "is not permitted"),
    (errno.EBUSY, DeviceBusy, "asleep or being reset"),
    (errno.ETIMEDOUT, DeviceHang, "queue stays full"),
    (errno.ENOTTY, NotSupported, "does not have this call"),
    (errno.EOPNOTSUPP, NotSupported, "does not have this call"),
    (errno.EINVAL, DriverRefused, "refused SUBMIT"),
    (9999, DriverRefused, "refused SUBMIT"),
]


@pytest.mark.parametrize(("code", "kind", "text"), CASES)
def test_each_number_has_its_error(code: int, kind: type[UgpuError], text: str) -> None:
    error = refused("SUBMIT", OSError(code, os.strerror(code)), context=3)
    assert type(error) is kind and error.facts["context"] == 3
    with pytest.raises(kind, match=text):
        raise error


def test_numbers_with_two_names_have_the_kernels() -> None:
    assert refused("SUBMIT", OSError(errno.EDEADLK, "")).facts["status"] == "EDEADLK"
    assert refused("SUBMIT", OSError(errno.ENOSPC, "")).facts["status"] == "ENOSPC"
    assert refused("SUBMIT", OSError(9999, "")).facts["status"] == "9999"


@pytest.mark.parametrize(
    ("size", "whole"), [(0, PAGE), (1, PAGE), (PAGE, PAGE), (PAGE + 1, 2 * PAGE)]
)
def test_sizes_are_whole_pages(size: int, whole: int) -> None:
    assert whole_pages(size) == whole
    with pytest.raises(BadArgument, match="size must not be negative"):
        whole_pages(-1)
