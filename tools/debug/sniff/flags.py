"""Names of the bits of flag words, from the headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ugpu.hcq.registers.constants import Constants
from ugpu.hcq.registers.fields import Field

#: (block, member) -> prefix of the names of its fields and bits. Source: nvos.h and the class
#: headers of 580.142.
PREFIXES = {
    ("NVOS02_PARAMETERS", "flags"): "NVOS02_FLAGS_",
    ("nv_ioctl_nvos02_parameters_with_fd", "params.flags"): "NVOS02_FLAGS_",
    ("NVOS33_PARAMETERS", "flags"): "NVOS33_FLAGS_",
    ("nv_ioctl_nvos33_parameters_with_fd", "params.flags"): "NVOS33_FLAGS_",
    ("NVOS46_PARAMETERS", "flags"): "NVOS46_FLAGS_",
    ("NVOS47_PARAMETERS", "flags"): "NVOS47_FLAGS_",
    ("NV_CHANNEL_ALLOC_PARAMS", "flags"): "NVOS04_FLAGS_",
    ("NV_MEMORY_ALLOCATION_PARAMS", "attr"): "NVOS32_ATTR_",
    ("NV_MEMORY_ALLOCATION_PARAMS", "attr2"): "NVOS32_ATTR2_",
    ("NV_MEMORY_ALLOCATION_PARAMS", "flags"): "NVOS32_ALLOC_FLAGS_",
    ("NV_MEMORY_ALLOCATION_PARAMS", "type"): "NVOS32_TYPE_",
    ("NV_VASPACE_ALLOCATION_PARAMETERS", "flags"): "NV_VASPACE_ALLOCATION_FLAGS_",
    ("NV_CTXSHARE_ALLOCATION_PARAMETERS", "flags"): "NV_CTXSHARE_ALLOCATION_FLAGS_",
    ("NV2080_CTRL_FB_FLUSH_GPU_CACHE_PARAMS", "flags"): "NV2080_CTRL_FB_FLUSH_GPU_CACHE_FLAGS_",
    ("NV0005_ALLOC_PARAMETERS", "notifyIndex"): "NV01_EVENT_",
    ("NVOS54_PARAMETERS", "flags"): "NVOS54_FLAGS_",
}
#: members that hold one of a list of values, not bits
_CHOICES = {("NV_MEMORY_ALLOCATION_PARAMS", "type")}


@dataclass(frozen=True)
class _Words:
    """The fields of one prefix, and the names outside of any field."""

    fields: tuple[tuple[str, Field], ...]
    numbers: dict[str, int]


class Flags:
    """Explain flag words with the constants of a kernel driver's interface."""

    def __init__(
        self, constants: Constants, prefixes: Mapping[tuple[str, str], str] = PREFIXES
    ) -> None:
        self.constants = constants
        self.prefixes = prefixes
        self._known: dict[str, _Words] = {}

    @cached_property
    def _names(self) -> list[str]:
        return list(self.constants)

    def _words(self, prefix: str) -> _Words:
        words = self._known.get(prefix)
        if words is None:
            constants = self.constants
            numbers = {
                name.removeprefix(prefix): constants[name]
                for name in self._names
                if name.startswith(prefix)
            }
            fields = [
                (field.name.removeprefix(prefix), field)
                for field in constants.fields()
                if field.name.startswith(prefix)
            ]
            words = self._known[prefix] = _Words(tuple(fields), numbers)
        return words

    def explain(self, struct: str, member: str, value: int) -> str:
        """Return the names of the bits that are set, such as "ACCESS=READ_ONLY CACHE_SNOOP=ENABLE";
        empty if there are none.

        A field whose value is zero is omitted. Bits without a name are shown as a number.
        """
        prefix = self.prefixes.get((struct, member))
        if prefix is None or not value:
            return ""
        words = self._words(prefix)
        if (struct, member) in _CHOICES:
            return next((name for name, number in words.numbers.items() if number == value), "")
        told, left = [], value
        for name, field in words.fields:
            number = field.extract(value)
            left &= ~field.mask
            if number:
                choices = (
                    flag.removeprefix(f"{name}_")
                    for flag, bit in words.numbers.items()
                    if bit == number and flag.startswith(f"{name}_")
                )
                told.append(f"{name}={next(choices, f'{number:#x}')}")
        for name, number in words.numbers.items():
            single = number > 0 and number & (number - 1) == 0
            inside = any(name.startswith(f"{field}_") for field, _ in words.fields)
            if single and not inside and left & number:
                told.append(name)
                left &= ~number
        if left:
            told.append(f"{left:#x}")
        return " ".join(told)
