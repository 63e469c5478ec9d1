"""`make bench`: run every benchmark, print a table, write build/bench.json.

A benchmark is a module bench_<subject>.py of a folder beside this file, with `measure() ->
list[dict]`, each dict {name, value, unit} plus {peer, peer_value, ratio} where a peer is measured
in the same run, and cpu_ratio where processor time is compared too; or {name, skipped: reason}.
Each module runs in a process of its own, so that none profits or suffers from what another has
loaded.
`python -m lab.bench start boot` runs only the named subjects. Each run is added to the history of
this kind of machine (lab/bench/history.py); `python -m lab.bench compare` measures nothing, but
shows what the last run did worse and better than the median of earlier ones, beyond their spread.
A subject that fails is named at the end; the others are measured all the same.
Exit status: 0; 1 where a subject failed; of compare, 1 where something became worse; 2 for an
unknown subject.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from lab.bench import history
from ugpu.hcq.state.config import setting

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIMIT_S = 900

# The module's own output goes to stderr; stdout carries the results alone.
RUN_ONE = """
import importlib, json, sys
sys.stdout = sys.stderr
results = importlib.import_module(sys.argv[1]).measure()
sys.__stdout__.write(json.dumps(results))
"""


def subjects() -> dict[str, str]:
    """The module of each subject, by its name."""
    paths = sorted(HERE.glob("*/bench_*.py"), key=lambda path: path.stem)
    return {
        path.stem.removeprefix("bench_"): f"lab.bench.{path.parent.name}.{path.stem}"
        for path in paths
    }


def run(subject: str) -> list[dict[str, object]]:
    """Measure one subject. Raises subprocess.SubprocessError where it fails or takes too long."""
    with setting("UGPU_TIERS", "0"):  # what is timed is the version that runs fast
        done = subprocess.run(
            [sys.executable, "-c", RUN_ONE, subjects()[subject]],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            timeout=LIMIT_S,
            check=True,
        )
    results: list[dict[str, object]] = json.loads(done.stdout)
    return results


def _reason(error: subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"more than {error.timeout:.0f} s"
    status = error.returncode if isinstance(error, subprocess.CalledProcessError) else error
    return f"exit status {status}"


def show(result: dict[str, object]) -> str:
    if "skipped" in result:
        return f"{result['name']!s:<62}        skipped: {result['skipped']}"
    line = f"{result['name']!s:<62} {result['value']:>14.6g} {result['unit']}"
    if "peer" in result:
        line += f"   {result['peer']}: {result['peer_value']:.6g} (ratio {result['ratio']:.3g})"
    if "cpu_ratio" in result:
        line += f" (of processor time {result['cpu_ratio']:.3g})"
    return line


def main() -> int:
    path = history.history_file()
    if sys.argv[1:] == ["compare"]:
        lines, worse = history.comparison(history.runs(path))
        print("\n".join([f"{path}:", *lines]))
        return int(worse)
    wanted = sys.argv[1:] or subjects()
    unknown = sorted(set(wanted) - set(subjects()))
    if unknown:
        print(f"no benchmark named {', '.join(unknown)}; there are: {', '.join(subjects())}")
        return 2
    results, failed = [], []
    for subject in wanted:
        try:
            measured = run(subject)
        except subprocess.SubprocessError as error:
            failed.append(f"{subject} failed: {_reason(error)}")
            print(failed[-1], flush=True)
            continue
        results.extend(measured)
        print(*map(show, measured), sep="\n", flush=True)
    target = ROOT / "build" / "bench.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    history.append(history.BenchRun.of(results), path)
    print(f"written to {target.relative_to(ROOT)}; added to {path}")
    for line in failed:
        print(line)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
