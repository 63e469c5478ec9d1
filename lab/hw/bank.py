"""Constant bank 0 as CUDA fills it, beside what our driver writes.

python -m lab.hw.bank FILE        FILE: what `python -m lab.hw.cuda_program bank` printed

A kernel reads the words below its own parameters: a load at a computed offset from a parameter
array becomes LDC from bank 0 at any offset (observed in what nvJitLink 13.5 makes for sm_75 to
sm_120). Ours is what the driver encodes for the same kernel and launch on the virtual chip of the
capability.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tests.support.nvidia import ptx_kernels
from ugpu import hcq
from ugpu.hcq.work.command import Launch
from ugpu.hcq.work.queue import Queue
from ugpu.nv.device.device import NvDevice
from ugpu.nv.packets.families import BankLayout, facts_of
from ugpu.nv.packets.launch import LaunchDetails, add_launch
from ugpu.nv.packets.pushbuffer import Pushbuffer
from ugpu.tools.debug.sniff import launches

KERNEL = "bank"
WINDOW = 64  # bytes of the parameter array; none of them is read
_ARRAY_AT = 8  # behind the pointer
#: where parameters start in bank 0, by major capability: ptxas, EIATTR_PARAM_CBANK
_PARAMETERS_AT = {7: 0x160, 8: 0x160, 9: 0x210, 10: 0x380, 12: 0x380}

_TEXT = """
.visible .entry bank(.param .u64 out, .param .align 4 .b8 window[{window}])
{{
  .reg .b32 %r<6>;
  .reg .b64 %a<8>;
  ld.param.u64 %a0, [out];
  cvta.to.global.u64 %a0, %a0;
  mov.u32 %r0, %tid.x;
  shl.b32 %r1, %r0, 2;
  cvt.u64.u32 %a1, %r1;
  add.u64 %a2, %a0, %a1;
  sub.u32 %r2, %r1, {array_at};
  cvt.s64.s32 %a3, %r2;
  mov.b64 %a4, window;
  add.u64 %a5, %a4, %a3;
  ld.param.u32 %r3, [%a5];
  st.global.u32 [%a2], %r3;
  ret;
}}
"""


def words_of(capability: tuple[int, int]) -> int:
    """Words of bank 0 below the parameters; KeyError for a capability that is not known."""
    return _PARAMETERS_AT[capability[0]] // 4


def text(capability: tuple[int, int]) -> bytes:
    """The kernel, as PTX."""
    array_at = _PARAMETERS_AT[capability[0]] + _ARRAY_AT
    kernel = _TEXT.format(window=WINDOW, array_at=array_at)
    return ptx_kernels.text(kernel, "sm_{}{}".format(*capability))


def dump(capability: tuple[int, int], words: Sequence[int]) -> str:
    """What a program prints: one line of JSON."""
    return json.dumps({"capability": list(capability), "words": list(words)})


def ours(device: NvDevice) -> tuple[list[int], dict[int, str]]:
    """The words that our driver writes below the parameters, and what they are."""
    capability = device.driver.gpu.capability
    with device.load(text(capability)) as program, device.alloc(4 * words_of(capability)) as out:
        queue = Queue(device.driver.compute_queue)
        window = np.zeros(WINDOW, np.uint8).view(f"V{WINDOW}")[0]
        queue.launch(program[KERNEL], grid=(1,), block=(words_of(capability),), args=(out, window))
        (launch,) = [command for command in queue.commands if isinstance(command, Launch)]
        details = launch.kernel.details
        assert isinstance(details, LaunchDetails)
        image = Pushbuffer()
        add_launch(image, launch)
        bank = image.blocks[0][: details.code.parameters_at]
    return launches.words(bank), names_of(device.driver.family.bank)


def names_of(layout: BankLayout) -> dict[int, str]:
    """What the words of a bank are, by their offset."""
    found: dict[int, str] = {}
    for name, at, count in (
        ("block", layout.block, 3), ("grid", layout.grid, 3),
        ("shared window", layout.shared_window, 2), ("local window", layout.local_window, 2),
        ("stack", layout.stack, 1),
    ):  # fmt: skip
        found |= {at + 4 * index: name for index in range(count)}
    if layout.cluster is not None:
        words = layout.cluster
        for name, at, count in (
            ("cluster: explicit", words.explicit, 1), ("cluster: groups", words.groups, 3),
            ("cluster: reciprocals", words.reciprocals, 2),
            ("cluster: clusters", words.clusters, 3), ("cluster: count", words.count, 1),
        ):  # fmt: skip
            found |= {at + 4 * index: name for index in range(count)}
    return found


def compare(found: Mapping[str, list[int]]) -> list[str]:
    """Lines about what CUDA's bank has and ours has not, and the other way round."""
    major, minor = found["capability"]
    chip = facts_of((major, minor)).name
    device = hcq.open(f"virtual:{chip}")
    assert isinstance(device, NvDevice)
    with device:
        words, names = ours(device)
    head = f"constant bank 0 of sm_{major}{minor}: CUDA | ours (as on virtual:{chip})"
    return [head, *launches.bank_lines(found["words"], words, names)]


def main(arguments: Sequence[str]) -> int:
    """Compare; 1 where anything differs but the addresses of windows."""
    lines = compare(json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
    sys.stdout.write("\n".join(lines) + "\n")
    return int(any(line.startswith("~") for line in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
