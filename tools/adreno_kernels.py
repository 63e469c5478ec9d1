"""Make qcom/kernels: the driver's own kernels, which copy and fill, as code for each generation.

    python -m tools.adreno_kernels          needs tinymesa; tests compare when it is installed

Compiled for the oldest chip of a generation, whose code all later ones of it run.
"""

from __future__ import annotations

import base64
import sys
import textwrap
from pathlib import Path

from compiler.codegen.objects import compile_text
from qcom import chips

FOLDER = Path(__file__).resolve().parents[1] / "qcom" / "kernels"
OLDEST = {6: "a618", 7: "a730"}
THREADS = 128

_TEXT = """
define spir_kernel void @{name}(ptr addrspace(1) %to, {argument}, i32 %count) #0 {{
entry:
  %thread = call i32 @adreno.thread()
  %group = call i32 @adreno.group.x()
  %first = mul i32 %group, {threads}
  %i = add i32 %first, %thread
  %inside = icmp ult i32 %i, %count
  br i1 %inside, label %move, label %end
move:
  %wide = zext i32 %i to i64
  %out = getelementptr {kind}, ptr addrspace(1) %to, i64 %wide
{value}
  store {kind} %value, ptr addrspace(1) %out
  br label %end
end:
  ret void
}}
declare i32 @adreno.thread()
declare i32 @adreno.group.x()
attributes #0 = {{ nounwind "adreno-threads"="{threads}" }}
"""
_LOADED = """  %in = getelementptr {kind}, ptr addrspace(1) %from, i64 %wide
  %value = load {kind}, ptr addrspace(1) %in"""


def sources() -> dict[str, str]:
    """LLVM IR of each kernel by name."""
    pointer = "ptr addrspace(1) %from"
    made = {}
    for name, argument, kind, value in (
        ("copy_words", pointer, "i32", _LOADED),
        ("copy_bytes", pointer, "i8", _LOADED),
        ("fill_words", "i32 %value", "i32", ""),
    ):
        made[name] = _TEXT.format(
            name=name, argument=argument, kind=kind, value=value.format(kind=kind), threads=THREADS
        )
    return made


def make(generation: int) -> dict[str, bytes]:
    """The objects (hcq.ir3object) of a generation by name."""
    target = chips.facts(OLDEST[generation]).target()
    return {name: compile_text(text, target) for name, text in sources().items()}


def text_of(objects: dict[str, bytes]) -> str:
    """A file of objects: a name, then its bytes in base64."""
    lines = ["# Made by tools.adreno_kernels; not edited."]
    for name, image in sorted(objects.items()):
        lines += [name, *textwrap.wrap(base64.b64encode(image).decode(), 96)]
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    for generation in OLDEST:
        (FOLDER / f"gen{generation}.txt").write_text(text_of(make(generation)), encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
