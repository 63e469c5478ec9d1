"""File sizes: a source file has one subject and stays under 500 lines.

Run as `python -m tools.house.sizes`. Generated files are exempt; their first lines identify them.
"""

from __future__ import annotations

import sys
from pathlib import Path

LIMIT = 500
SUFFIXES = (".py", ".c", ".h", ".ll")
FOLDERS = ("am", "compiler", "hcq", "lab", "nv", "qcom", "tests", "tools", "ugpu", "usbgpu")


def check(root: Path) -> list[str]:
    """Return one line per file that is too long."""
    faults = []
    for folder in FOLDERS:
        files = (file for file in (root / folder).rglob("*") if file.suffix in SUFFIXES)
        for file in sorted(files):
            lines = file.read_text(encoding="utf-8").splitlines()
            if len(lines) > LIMIT and not any("generated" in line.lower() for line in lines[:3]):
                faults.append(f"{file.relative_to(root)}: {len(lines)} lines, at most {LIMIT}")
    return faults


def main() -> int:
    faults = check(Path.cwd())
    for fault in faults:
        print(fault)
    print(f"sizes: {len(faults)} files too long" if faults else f"sizes: all under {LIMIT} lines")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
