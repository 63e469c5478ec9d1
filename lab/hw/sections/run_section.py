"""One section in a process of its own: a device that hangs or dies takes only its section along.

python -m lab.hw.sections.run_section SECTION DEVICE SECONDS FILE [--small]

Results are appended to FILE as they come, one JSON object a line, so that what was found before an
end by force is kept. FILE.calls gets the last calls to the driver where something failed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import traceback
from dataclasses import asdict
from pathlib import Path

from lab.hw import calls
from lab.hw.budget import Budget
from lab.hw.report import Result
from ugpu.hcq.errors import UgpuError


def main(arguments: list[str] | None = None) -> int:
    """Run a section; what it raises becomes a failed result."""
    parser = argparse.ArgumentParser(prog="python -m lab.hw.sections.run_section")
    parser.add_argument("section")
    parser.add_argument("device")
    parser.add_argument("seconds", type=float)
    parser.add_argument("file", type=Path)
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args(arguments)
    module = importlib.import_module(f"lab.hw.sections.{given.section}")
    kept, told = calls.LastCalls(), given.file.with_suffix(".calls")
    calls.install(kept)
    calls.tell_when_ended(kept, told)
    with given.file.open("a", encoding="utf-8") as file:

        def tell(result: Result) -> None:
            file.write(json.dumps(asdict(result)) + "\n")
            file.flush()
            if result.outcome == "failed" and kept.kept and not told.exists():
                kept.save(told)  # the calls before the first failure are the ones that count

        try:
            for result in module.run(given.device, Budget(given.seconds, given.small, calls=told)):
                tell(result)
        except (UgpuError, AssertionError) as error:
            traceback.print_exc()
            remark = f"{type(error).__name__}: {error}"[:300]
            tell(Result(module.TITLE, given.section, "failed", remark=remark))
    given.file.with_suffix(".done").touch()  # all was told; only the process may still hang
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
