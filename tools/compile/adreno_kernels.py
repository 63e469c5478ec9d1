"""Make qcom/kernels: the driver's own copy and fill kernels, as code for each kind of chip.

    python -m ugpu.tools.compile.adreno_kernels

It needs tinymesa; a test compares its result where that is installed.

The kernels are compiled for the oldest chip of a file (qcom.kernels.file_of). All later chips of
the file run that code.
"""

from __future__ import annotations

import base64
import sys
import textwrap
from pathlib import Path

from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.qcom import chips
from ugpu.qcom.kernels import file_of

FOLDER = Path(__file__).resolve().parents[2] / "qcom" / "kernels"
OLDEST = ("a618", "a660", "a730")
THREADS = 128

_TEXT = """
define spir_kernel void @{name}(ptr addrspace(1) %to, {argument}, i32 %size) #0 {{
entry:
  %thread = call i32 @adreno.thread()
  %group = call i32 @adreno.group.x()
  %first = mul i32 %group, {threads}
  %i = add i32 %first, %thread
  %offset = shl i32 %i, 2
  %inside = icmp ult i32 %offset, %size
  br i1 %inside, label %move, label %end
move:
  %wide = zext i32 %offset to i64
  %out = getelementptr i8, ptr addrspace(1) %to, i64 %wide
{body}
  br label %end
end:
  ret void
}}
declare i32 @adreno.thread()
declare i32 @adreno.group.x()
attributes #0 = {{ nounwind "adreno-threads"="{threads}" }}
"""
# Four bytes a thread: as one word if both addresses are aligned and four bytes are left, else
# bytewise.
_COPY = """  %in = getelementptr i8, ptr addrspace(1) %from, i64 %wide
  %left = sub i32 %size, %offset
  %a = ptrtoint ptr addrspace(1) %to to i64
  %b = ptrtoint ptr addrspace(1) %from to i64
  %both = or i64 %a, %b
  %low = trunc i64 %both to i32
  %odd = and i32 %low, 3
  %even = icmp eq i32 %odd, 0
  %four = icmp uge i32 %left, 4
  %word = and i1 %even, %four
  br i1 %word, label %whole, label %byte0
whole:
  %value = load i32, ptr addrspace(1) %in
  store i32 %value, ptr addrspace(1) %out
  br label %end
byte0:
  %value0 = load i8, ptr addrspace(1) %in
  store i8 %value0, ptr addrspace(1) %out
  %more1 = icmp ugt i32 %left, 1
  br i1 %more1, label %byte1, label %end
""" + "\n".join(
    f"""byte{k}:
  %in{k} = getelementptr i8, ptr addrspace(1) %in, i64 {k}
  %out{k} = getelementptr i8, ptr addrspace(1) %out, i64 {k}
  %value{k} = load i8, ptr addrspace(1) %in{k}
  store i8 %value{k}, ptr addrspace(1) %out{k}
"""
    + (
        f"  %more{k + 1} = icmp ugt i32 %left, {k + 1}\n"
        f"  br i1 %more{k + 1}, label %byte{k + 1}, label %end\n"
        if k < 3
        else ""
    )
    for k in (1, 2, 3)
)


def sources() -> dict[str, str]:
    """Return the LLVM IR of each kernel by name."""
    fill = "  store i32 %value, ptr addrspace(1) %out"
    return {
        "copy": _TEXT.format(
            name="copy", argument="ptr addrspace(1) %from", body=_COPY, threads=THREADS
        ),
        "fill": _TEXT.format(name="fill", argument="i32 %value", body=fill, threads=THREADS),
    }


def make(chip: str) -> dict[str, bytes]:
    """Return the objects (hcq.objects.ir3_object) of a chip by name."""
    target = chips.facts(chip).target()
    return {name: compile_text(text, target) for name, text in sources().items()}


def text_of(objects: dict[str, bytes]) -> str:
    """Return the text of a file of objects: each name, followed by its bytes in base64."""
    lines = ["# Made by ugpu.tools.compile.adreno_kernels; not edited."]
    for name, image in sorted(objects.items()):
        lines += [name, *textwrap.wrap(base64.b64encode(image).decode(), 96)]
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    for chip in OLDEST:
        path = FOLDER / file_of(chips.facts(chip))
        path.write_text(text_of(make(chip)), encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
