"""Plant single bugs and count which of them the tests find: `python -m tests.mutants [WORD ...]`.

The lists beside this file say which: a line `@ FILE : TEST ...` names a file and the tests that
belong to it; then each mutant is `- TEXT` and `+ TEXT`, what is there and what is put in its place.
The text occurs once in the file, or a line `> TEXT` before says behind which text it stands. Words
choose the mutants whose list has that name, or whose file contains it.

Each is planted in a copy of the checkout under build/mutants, and its tests run there until one
fails. A mutant whose tests pass has survived: a test is missing. The tests must pass without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[2]
LISTS = Path(__file__).parent
COPIES = ROOT / "build" / "mutants"
GOAL = 0.9  # of all mutants
LIMIT_S = 900.0  # TIMEOUT: a bug that makes its tests hang is found
MARKS = "not slow and not hardware and not foreign"


@dataclass(frozen=True)
class Mutant:
    """One bug. list_: the name of its list. after: the line its text stands behind, or empty."""

    list_: str
    file: str
    tests: tuple[str, ...]
    after: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}: {self.old.strip()!r} -> {self.new.strip()!r}"

    def planted(self, text: str) -> str:
        """The file's text with the bug. ValueError where its place is not found, or not once."""
        start = 0
        if self.after:
            start = text.find(self.after)
            if start < 0:
                raise ValueError(f"{self}: the file has no {self.after!r}")
            start += len(self.after)
        found = text.count(self.old, start)
        if not found or (found > 1 and not self.after):
            raise ValueError(f"{self}: expected the text once, found it {found} times")
        at = text.index(self.old, start)
        return text[:at] + self.new + text[at + len(self.old) :]


    def has_place(self) -> bool:
        """Whether the bug can be planted in the file as it is now."""
        try:
            self.planted((ROOT / self.file).read_text("utf-8"))
        except (ValueError, FileNotFoundError):
            return False
        return True


def parse(name: str, text: str) -> Iterator[Mutant]:
    """The mutants of a list. ValueError names the line that is not understood."""
    file, after, tests = "", "", ()  # type: str, str, tuple[str, ...]
    old: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        kind, rest = line[:2], line[2:]
        if kind == "@ ":
            file, _, listed = (part.strip() for part in rest.partition(" : "))
            tests = tuple(listed.split())
        elif kind == "> ":
            after = rest
        elif kind == "- ":
            old = rest
        elif kind.strip() == "+" and file and old is not None:
            yield Mutant(name, file, tests, after, old, rest)
            after, old = "", None
        elif line.strip() and not line.startswith("#"):
            raise ValueError(f"{name}, line {number}: expected @, >, - or +, got {line!r}")


def listed() -> list[Mutant]:
    """All mutants of all lists."""
    paths = sorted(LISTS.glob("*.txt"))
    return [mutant for path in paths for mutant in parse(path.stem, path.read_text("utf-8"))]


class Copy:
    """A copy of the checkout's files, as they are now."""

    def __init__(self, number: int) -> None:
        self.folder = COPIES / str(number)
        asked = ("git", "ls-files", "-co", "--exclude-standard", "-z")
        names = subprocess.run(asked, cwd=ROOT, capture_output=True, check=True).stdout.decode()
        wanted = {name for name in names.split("\0") if name and (ROOT / name).is_file()}
        for path in self.folder.rglob("*"):
            if path.is_file() and str(path.relative_to(self.folder)) not in wanted:
                path.unlink()
        for name in wanted:
            to = self.folder / name
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to)

    def passes(self, tests: Sequence[str]) -> bool:
        """Whether the tests pass here; not where they do not end."""
        command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "-m", MARKS]
        environment = os.environ | {"UGPU_TEST_CACHE": str(ROOT / "build" / "test-cache")}
        environment.pop("PYTHONPATH", None)
        try:
            done = subprocess.run(
                [*command, *tests], cwd=self.folder, env=environment, timeout=LIMIT_S, check=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def survives(self, mutant: Mutant, stamp: int) -> bool:
        """Plant a mutant, run its tests, put the file back. stamp: a modification time that no
        other content of the file had, so that no byte code is taken for another's."""
        path = self.folder / mutant.file
        path.write_text(mutant.planted(path.read_text("utf-8")), "utf-8")
        os.utime(path, (stamp, stamp))
        try:
            return self.passes(mutant.tests)
        finally:
            shutil.copy2(ROOT / mutant.file, path)


def each(work: Sequence[Callable[[Copy], None]]) -> None:
    """Do all work, on as many copies as there are processors."""
    copies: SimpleQueue[Copy] = SimpleQueue()
    count = min(len(os.sched_getaffinity(0)), len(work))
    for number in range(count):
        copies.put(Copy(number))

    def do(one: Callable[[Copy], None]) -> None:
        copy = copies.get()
        try:
            one(copy)
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(max(1, count)) as threads:
        list(threads.map(do, work))


def main(words: Sequence[str]) -> int:
    chosen = [m for m in listed() if not words or any(w in m.file or w == m.list_ for w in words)]
    lost = [mutant for mutant in chosen if not mutant.has_place()]
    for mutant in lost:
        print(f"LOST     {mutant}: the code has changed; find the bug a new place", flush=True)
    chosen = [mutant for mutant in chosen if mutant not in lost]
    sets = sorted({mutant.tests for mutant in chosen})
    red: list[str] = []
    survivors: list[Mutant] = []

    def control(tests: tuple[str, ...], copy: Copy) -> None:
        if not copy.passes(tests):
            red.append(" ".join(tests))

    def plant(mutant: Mutant, stamp: int, copy: Copy) -> None:
        alive = copy.survives(mutant, stamp)
        if alive:
            survivors.append(mutant)
        print(f"{'SURVIVED' if alive else 'killed  '} {mutant}", flush=True)

    each([partial(control, tests) for tests in sets])
    for tests in red:
        print(f"these fail without any mutant: {tests}", flush=True)
    first = int(time.time())
    sound = [mutant for mutant in chosen if " ".join(mutant.tests) not in red]
    each([partial(plant, mutant, first + n) for n, mutant in enumerate(sound)])
    killed = len(sound) - len(survivors)
    print(f"mutants: {killed} of {len(sound)} killed", flush=True)
    return 1 if red or lost or killed < GOAL * len(sound) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
