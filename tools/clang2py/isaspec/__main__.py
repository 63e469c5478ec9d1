"""The program: reads isaspec files, writes a table."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ugpu.tools.clang2py.isaspec.read import Reader


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="isaspec", description=__doc__)
    parser.add_argument("source", type=Path, nargs="+", help="XML files; later ones amend")
    parser.add_argument("--revision", required=True, help="of Mesa")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    reader = Reader()
    for path in options.source:
        reader.read(path)
    lines = [
        f"# Made by ugpu.tools.clang2py.isaspec from Mesa {options.revision}, "
        "src/freedreno/isa (MIT). Not edited.",
        *(json.dumps(row, separators=(",", ":"), ensure_ascii=False) for row in reader.rows()),
    ]
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
