"""File sizes: a source file has one subject; past 500 lines its docstring gives the reason, in a
sentence that begins "Longer than 500 lines:".

Run as `python -m ugpu.tools.house.sizes`. Generated files are exempt; their first lines identify
them.
"""

from __future__ import annotations

import sys
from pathlib import Path

LIMIT = 500
REASON = f"Longer than {LIMIT} lines:"
SUFFIXES = (".py", ".c", ".h", ".ll")
FOLDERS = (
    "am", "compiler", "hcq", "lab", "nv", "qcom", "tests", "tools", "ugpu", "usbgpu", "virtual",
)  # fmt: skip


def check(root: Path) -> list[str]:
    """Return one line per file that is too long."""
    faults = []
    for folder in FOLDERS:
        files = (file for file in (root / folder).rglob("*") if file.suffix in SUFFIXES)
        for file in sorted(files):
            lines = file.read_text(encoding="utf-8").splitlines()
            generated = any("generated" in line.lower() for line in lines[:3])
            reason = any(line.lstrip().startswith(REASON) for line in lines[:20])
            if len(lines) > LIMIT and not generated and not reason:
                faults.append(f"{file.relative_to(root)}: {len(lines)} lines, at most {LIMIT}")
    return faults


def main() -> int:
    faults = check(Path.cwd())
    for fault in faults:
        print(fault)
    print(
        f"sizes: {len(faults)} files too long"
        if faults
        else f"sizes: all under {LIMIT} lines, or longer for a reason"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
