"""All that one call on a machine with an NVIDIA GPU can bring home, in one folder.

python -m lab.hw.first_contact FOLDER [--device nvrm:0] [--minutes 9]

In this order, each in a process of its own with a time of its own, so that one that hangs costs
only itself: what the machine says of itself; our driver step by step (lab.hw.ladder); what CUDA
does to launch a kernel, to copy and to replay a graph, recorded where libcuda is; what our driver
does for the same, recorded and compared; the whole suite; and in the time that is kept for it CUDA
once more, with what it writes before its doorbells: a launch of clusters and the plain one, each
beside ours. FOLDER gets few files, none above 15 MiB, written as things come:

    summary.md            the steps, how each went, the end of what it said
    machine.json          lab.hw.machine
    ladder.json           lab.hw.ladder: each rung, what it found, where it ended
    *.json, *.md          the suite's report
    calls.txt             constant bank 0 of CUDA and of ours, the recordings decoded, differences
    recordings.tar        the recordings themselves, each with gzip (see docs/sniff.md)

Exit code: 0 when every step went well, 1 otherwise, 3 where there is no GPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.hw import __main__ as suite
from lab.hw import process
from lab.hw.calls import DEFAULT_DRIVER
from lab.hw.cuda_program import NO_CUDA, WORKS
from ugpu.tools.inspect.devices import listed

ROOT = suite.ROOT
#: seconds for each kind of step; the suite takes what is left
MACHINE_S, LADDER_S, RECORD_S, SHOW_S = 30.0, 300.0, 30.0, 20.0
SUITE_S = 5 * 60.0
LADDER_ENDS_S = 15.0
#: kept for the recordings at the end
MEMORY_S = 120.0
#: a recording with memory, and at how many doorbells; CUDA rings many before the first launch
RECORD_MEMORY_S, SHOTS = 45.0, 240
#: what the suite is left at least by the steps before it, where there is as much
SUITE_LEAST_S = 2.5 * 60.0
MOST_ARCHIVE = 15 << 20
MOST_TEXT = 6 << 20  # bytes of a part of calls.txt; of all of it at most twice as many
TOLD_LINES = 12


def say(text: str) -> None:
    """A line for whoever waits."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@dataclass
class Step:
    """One step, done: outcome is "well", "absent", "different" or "failed"."""

    name: str
    outcome: str
    seconds: float
    told: list[str] = field(default_factory=list)


@dataclass
class Visit:
    """The steps on one device. `now` tells the time. only: sections of the suite; default all.

    recordings: a folder for them, apart from those files that are brought home.
    """

    device: str
    folder: Path
    end: float
    recordings: Path
    now: Callable[[], float] = time.monotonic
    steps: list[Step] = field(default_factory=list)
    driver: str = DEFAULT_DRIVER
    only: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.recordings.mkdir(parents=True, exist_ok=True)
        self.reserve = min(SUITE_LEAST_S, (self.end - self.now()) / 2)
        self.texts: list[str] = []
        self.left_out: list[str] = []

    def step(
        self,
        name: str,
        command: Sequence[str],
        limit_s: float,
        code: int | None = None,
        meaning: str = "absent",
    ) -> process.Ended:
        """Run one step. code: an exit code that is no failure, and what it means."""
        begin = self.now()
        limit = min(limit_s, self.end - begin - self.reserve)
        if limit <= 1:
            done = process.Ended(None, "", "", "no time was left")
        else:
            say(f"first contact: {name} (at most {limit:.0f} s)")
            done = process.run([sys.executable, "-m", *command], limit, folder=ROOT, most=MOST_TEXT)
        outcome = "failed" if done.trouble else "well"
        told = []
        if code is not None and done.code == code:
            outcome = meaning
        if outcome in ("absent", "failed"):
            said = done.errors.strip() or done.output.strip()
            told = [done.trouble, *said.splitlines()[-TOLD_LINES:]]
        self.steps.append(Step(name, outcome, self.now() - begin, told))
        self.write_summary()
        return done

    def write_summary(self) -> None:
        """The page of what was done so far."""
        lines = [f"# First contact with `{self.device}`", ""]
        lines += ["| step | how it went | seconds |", "|---|---|---|"]
        lines += [f"| {s.name} | {s.outcome} | {s.seconds:.1f} |" for s in self.steps]
        for step in self.steps:
            if step.told:
                lines += ["", f"## {step.name}", "", "```", *step.told, "```"]
        if self.left_out:
            lines += ["", "Recordings that are too large to bring home:", "", *self.left_out]
        (self.folder / "summary.md").write_text("\n".join(lines) + "\n", encoding="utf-8")

    # The steps

    def look_around(self) -> None:
        """What the machine says of itself; the driver's version is needed later."""
        done = self.step("the machine", ["lab.hw.machine"], MACHINE_S)
        (self.folder / "machine.json").write_text(done.output or "{}", encoding="utf-8")
        try:
            found = json.loads(done.output)
            self.driver = found["resource manager"].get("version", DEFAULT_DRIVER)
        except (ValueError, KeyError, AttributeError):
            pass

    def record(
        self, name: str, command: Sequence[str], *, by: str = "", memory: bool = False
    ) -> Path | None:
        """Record a program, or with by="device" our own driver; the recording, if there is one.

        memory: also what is written before doorbells, which needs more of the machine.
        """
        path = self.recordings / f"{name}.jsonl"
        sniff = ["ugpu.tools.cli", "sniff", "--driver", self.driver, "-o", str(path)]
        sniff += ["--memory", str(SHOTS)] if memory else []
        sniff += ["device", self.device] if by else ["--", sys.executable, *command]
        limit = RECORD_MEMORY_S if memory else RECORD_S
        done = self.step(f"record {name}", sniff, limit, None if by else NO_CUDA)
        if not path.exists() or done.code == NO_CUDA:
            return None
        shown = self.step(f"decode {name}", ["ugpu.tools.cli", "sniff", "show", str(path)], SHOW_S)
        self.texts.append(f"==== {name} ({done.trouble or 'well'})\n{shown.output}")
        self.write_texts()
        return path

    def record_launch(self, work: str) -> Path | None:
        """Our driver at a launch that CUDA is recorded with."""
        name = f"ours-{work}"
        path = self.recordings / f"{name}.jsonl"
        command = ["lab.hw.our_launch", self.device, str(path), "--driver", self.driver]
        done = self.step(f"record {name}", [*command, "--work", work], RECORD_S, NO_CUDA)
        if not path.exists() or done.code == NO_CUDA:
            return None
        shown = self.step(f"decode {name}", ["ugpu.tools.cli", "sniff", "show", str(path)], SHOW_S)
        self.texts.append(f"==== {name}\n{shown.output}")
        self.write_texts()
        return path

    def compare(self, left: Path | None, right: Path | None) -> None:
        """What CUDA does and we do not, and the other way round."""
        if left is None or right is None:
            return
        command = ["ugpu.tools.cli", "sniff", "compare", str(left), str(right)]
        name = f"compare {left.stem} with {right.stem}"
        done = self.step(name, command, SHOW_S, 1, "different")
        self.texts.append(f"==== - {left.stem}  + {right.stem}\n{done.output}")
        self.write_texts()

    def write_texts(self) -> None:
        """Recordings as text, and as they are."""
        text = "\n".join(self.texts)[: 2 * MOST_TEXT]
        (self.folder / "calls.txt").write_text(text, encoding="utf-8")
        packed = []
        for path in sorted(self.recordings.glob("*.jsonl")):
            small = path.with_suffix(".jsonl.gz")
            if not small.exists():
                with path.open("rb") as raw, gzip.open(small, "wb", compresslevel=6) as out:
                    shutil.copyfileobj(raw, out)
            packed.append(small)
        self.left_out, total = [], 0
        with tarfile.open(self.folder / "recordings.tar", "w") as archive:
            for small in sorted(packed, key=lambda each: each.stat().st_size):
                total += small.stat().st_size + tarfile.RECORDSIZE
                if total > MOST_ARCHIVE:
                    self.left_out.append(f"{small.name}, {small.stat().st_size} bytes")
                else:
                    archive.add(small, f"recordings/{small.name}")
        self.write_summary()

    def examine(self) -> None:
        """The suite, whose report comes here."""
        left = self.end - self.now() - 10
        minutes = max(min(SUITE_S, left - min(MEMORY_S, left / 4)) / 60, 0.1)
        self.reserve = 0.0
        command = ["lab.hw", "--device", self.device, "--output", str(self.folder)]
        command += ["--minutes", f"{minutes:.2f}"]
        if self.only:
            command += ["--only", *self.only]
        self.step("the suite", command, SUITE_S + 90)

    def banks(self) -> None:
        """Constant bank 0 as CUDA fills it, beside what our driver writes."""
        done = self.step("constant bank 0 of CUDA", ["lab.hw.cuda_program", "bank"], RECORD_S,
                         NO_CUDA)  # fmt: skip
        if done.code != 0:
            return
        path = self.recordings / "bank.json"
        path.write_text(done.output, encoding="utf-8")
        name = "compare the banks"
        shown = self.step(name, ["lab.hw.bank", str(path)], RECORD_S, 1, "different")
        self.texts.append(f"==== constant bank 0\n{done.output}{shown.output}")
        self.write_texts()

    def all(self) -> int:
        """Everything; whether it went well."""
        self.look_around()
        # The ladder ends its rungs itself: one that outlived it would hold the GPU.
        seconds = min(LADDER_S, self.end - self.now() - self.reserve) - LADDER_ENDS_S
        ladder = ["lab.hw.ladder", str(self.folder / "ladder.json"), "--device", self.device]
        self.step("the ladder", [*ladder, "--seconds", f"{max(seconds, 1):.0f}"], LADDER_S)
        self.banks()
        cuda = [self.record(f"cuda-{work}", ["-m", "lab.hw.cuda_program", work])
                for work in WORKS]  # fmt: skip
        ours = self.record("ours", [], by="device", memory=True)
        ours_at = {"launch": self.record_launch("launch")}
        for each in cuda:
            self.compare(each, ours)
        self.examine()
        # At the end: a sandbox may not bear with stepping over a doorbell.
        ours_at["cluster"] = self.record_launch("cluster")
        for work in ("cluster", *WORKS) if any(cuda) else ():
            path = self.record(f"cuda-{work}-memory", ["-m", "lab.hw.cuda_program", work],
                               memory=True)  # fmt: skip
            self.compare(path, ours_at.get(work))
        return int(any(step.outcome == "failed" for step in self.steps))


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m lab.hw.first_contact", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", help="default: the first GPU that can be opened")
    parser.add_argument("--minutes", type=float, default=9, help="default: %(default)s")
    parser.add_argument("--only", nargs="+", choices=tuple(suite.SECTIONS), default=())
    given = parser.parse_args(arguments)
    device = given.device or next(iter(suite.usable(listed())), None)
    with tempfile.TemporaryDirectory(prefix="recordings-") as name:
        recordings = Path(name) / "recordings"
        end = time.monotonic() + 60 * given.minutes
        visit = Visit(device or "none", given.folder.resolve(), end, recordings, only=given.only)
        if device is None:
            say("first contact: no GPU of this machine can be opened; see machine.json")
            visit.look_around()
            return suite.NO_GPU
        code = visit.all()
        say((visit.folder / "summary.md").read_text(encoding="utf-8"))
        return code


if __name__ == "__main__":
    sys.exit(main())
