"""Kernels written instruction by instruction, for tests of the shader processors."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.adreno.ir3_machine import CODE, map_code, processors
from tests.support.shader_memory import ArrayMemory
from ugpu.qcom import chips
from ugpu.virtual.adreno.isa.decoder.table import Encoding, table
from ugpu.virtual.adreno.shader import Dispatch, Outcome
from ugpu.virtual.shader.memory import Abort

OUT = 0x4000_0000
END = 3 << 56
NOPS = 5 << 40  # (rpt5)nop: what any reader waits for arithmetic


@cache
def _encoding(chip: str, name: str) -> Encoding:
    (found,) = [e for e in table(gpu(chip)).encodings["#instruction"] if e.name == name]
    return found


def i(name: str, chip: str = "a630", **fields: int) -> int:
    """An instruction: its fixed bits and fields, by the names of the table. DST, SRC and the like
    are bits, see `c` and `k`."""
    encoding = _encoding(chip, name)
    bits = encoding.match
    for wanted, value in fields.items():
        places = [case.fields[wanted] for case in encoding.cases if wanted in case.fields]
        field = next(one for one in places if one.expression is None)
        assert -(field.mask + 1) // 2 <= value <= field.mask, (name, wanted, value)
        bits |= (value & field.mask) << field.low
    return bits


def r(number: int, component: str = "x") -> int:
    """The number of a register."""
    return 4 * number + "xyzw".index(component)


def c(number: int) -> int:
    """A constant as the source of category 2 or 4: its word."""
    return 0x1000 | number


def k(value: int) -> int:
    """An immediate as the source of category 2 or 4."""
    return 0x2000 | value & 0x7FF


def mov(target: int, value: int) -> int:
    """A word into a register."""
    return i("mov-immed", DST=target, SRC_TYPE=3, DST_TYPE=3, SRC=value)


def stored(source: int, chip: str = "a630", offset: int = 0, at: int = 0) -> list[int]:
    """Store a register of every thread of a group, whose number is in register `at`, at OUT;
    r40 to r42 are used. offset: words."""
    return [
        i("shl.b", DST=r(42), SRC1=at, SRC2=k(2), FULL=1),
        i("add.u", DST=r(41), SRC1=r(42), SRC2=c(0), FULL=1),
        i("mov-const", DST=r(41, "y"), SRC_TYPE=3, DST_TYPE=3, SRC=1),
        i("stg", DST_OFF=0, SRC1=r(41), SRC3=source, SIZE=1, TYPE=3, OFF_LO=4 * offset),
    ]


def spaced(code: list[int]) -> list[int]:
    """Code whose every result is there for the next instruction. It must not branch."""
    return [word for one in code for word in (one, NOPS)]


def words(*code: int) -> bytes:
    """Machine code of words."""
    return struct.pack(f"<{len(code)}Q", *code)


@cache
def gpu(chip: str) -> int:
    return chips.facts(chip).gpu_id


def run(
    code: bytes, chip: str = "a630", memory: ArrayMemory | None = None, **more: Any
) -> tuple[Outcome, ArrayMemory]:
    """Run a kernel of one group, unless `more` says otherwise."""
    memory = memory or ArrayMemory()
    map_code(memory, code)
    facts: dict[str, Any] = {
        "gpu_id": gpu(chip), "code_address": CODE, "code_size": len(code) + -len(code) % 128,
        "groups": (1, 1, 1), "threads": (64, 1, 1), "thread_register": 0,
        "constants": constants(), "scalar_unit": chips.facts(chip).scalar_unit,
        "predication_nops": chips.facts(chip).predication_nops,
    }  # fmt: skip
    return processors().launch(Dispatch(**facts | more), memory, Abort()), memory


def constants(*given: int) -> NDArray[np.uint32]:
    """A constant file that begins with the address of the results, then what is given."""
    return np.array([OUT & 0xFFFFFFFF, OUT >> 32, *given], np.uint32)
