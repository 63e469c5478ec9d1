"""Check the rows from libclang with a second compiler: gcc must agree on every number.

A C program is generated from the rows. It has a `_Static_assert` for each size and each offset, and
code that sets each bitfield to all ones and checks which bits of memory changed. It must compile,
and run without reporting an error.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ugpu.tools.clang2py.cheaders import STUBS, HeaderError, Row

_CHECK_BITS = """
static int wrong;
static void check_bits(const unsigned char *raw, unsigned long size, unsigned long first,
                       unsigned long count, const char *name) {
  for (unsigned long bit = 0; bit < size * 8; bit++) {
    int expected = bit >= first && bit < first + count;
    if (((raw[bit / 8] >> (bit % 8)) & 1) != expected) {
      __builtin_printf("%s: bit %lu\\n", name, bit);
      wrong = 1;
      return;
    }
  }
}
"""


def _type(row: Row, rows: Mapping[str, Row]) -> str:
    """Return a row's type in C; that of an unnamed row is the type of the member that contains
    it."""
    if row.spelling:
        return row.spelling
    owner, _, member = row.name.rpartition(".")
    kind = next(kind for name, kind, *_ in rows[owner].members if name == member)
    first = "[0]" * kind.count("[")
    return f"__typeof__((({_type(rows[owner], rows)} *)0)->{member}{first})"


def _statements(row: Row, spelled: str) -> Iterator[tuple[str, str]]:
    """Yield the statements outside of functions, and those inside of one."""
    yield f'_Static_assert(sizeof({spelled}) == {row.size}, "size of {row.name}");', ""
    for name, _, offset, bit, width in row.members:
        if width:
            yield (
                "",
                f"{{ {spelled} s; __builtin_memset(&s, 0, sizeof s); s.{name} = -1; "
                f"check_bits((unsigned char *)&s, sizeof s, {offset * 8 + bit}, {width}, "
                f'"{row.name}.{name}"); }}',
            )
        else:
            place = f"__builtin_offsetof({spelled}, {name})"
            yield f'_Static_assert({place} == {offset}, "{row.name}.{name}");', ""


def program(header: Path, rows: Mapping[str, Row], *, before: str = "") -> str:
    """Return the checking program of a header's rows."""
    outside, inside = [], []
    for row in rows.values():
        for first, second in _statements(row, _type(row, rows)):
            outside.append(first)
            inside.append(second)
    lines = [before, f'#include "{header}"', *filter(None, outside), _CHECK_BITS]
    lines += ["int main(void) {", *filter(None, inside), "return wrong;", "}", ""]
    return "\n".join(lines)


def gcc() -> str | None:
    """Return the path of gcc, or None."""
    return shutil.which("gcc")


def crosscheck(
    compiler: str,
    header: Path,
    rows: Mapping[str, Row],
    *,
    before: str = "",
    include: Sequence[Path] = (),
) -> None:
    """Compile and run the checking program; HeaderError names the places where the compilers
    differ."""
    with tempfile.TemporaryDirectory() as name:
        source, binary = Path(name) / "check.c", Path(name) / "check"
        source.write_text(program(header, rows, before=before), encoding="utf-8")
        command = [compiler, "-std=gnu11", "-nostdinc", "-w", "-O0", f"-I{STUBS}"]
        command += [*(f"-I{folder}" for folder in include), "-o", str(binary), str(source)]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode != 0:
            raise HeaderError(f"{header}: gcc disagrees", said=built.stderr.strip()[:2000])
        ran = subprocess.run([str(binary)], capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise HeaderError(f"{header}: gcc disagrees on bits", said=ran.stdout.strip()[:2000])
