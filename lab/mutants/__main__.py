"""Plant single bugs and count which of them the tests find: `python -m lab.mutants [WORD ...]`.

The lists beside this file say which (lab.mutants.planting). Words choose the mutants whose list
has that name, or whose file, old or new text contains it.

Each is planted in a copy of the checkout under build/mutants. The tests of its file that reach the
changed lines run there, the quickest first, until one fails; where all pass, or where the tests
fail while their lines are watched, all tests of the file run. A mutant that outlives these has
survived: a test is missing. The tests must pass without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from lab.mutants import planting
from lab.mutants.planting import ROOT, Mutant
from lab.mutants.reach import FILES, OUTPUT, Reach

COPIES = ROOT / "build" / "mutants"
GOAL = 0.9  # of all mutants
LIMIT_S = 900.0  # TIMEOUT: a bug that makes its tests hang is found
PATIENCE, LEAST_S = 20, 60.0  # TIMEOUT: of the time that the same tests take without the bug
MARKS = "(not slow or costly) and not hardware and not foreign"


def _is_content(path: Path) -> bool:
    """Whether git's name is a file, or a link to a folder (those in `ugpu`)."""
    return path.is_symlink() or path.is_file()


class Copy:
    """A copy of the checkout's files, as they are now."""

    def __init__(self, number: int) -> None:
        self.folder = COPIES / str(number)
        asked = ("git", "ls-files", "-co", "--exclude-standard", "-z")
        names = subprocess.run(asked, cwd=ROOT, capture_output=True, check=True).stdout.decode()
        wanted = {name for name in names.split("\0") if name and _is_content(ROOT / name)}
        for path in self.folder.rglob("*"):
            if path.is_file() and str(path.relative_to(self.folder)) not in wanted:
                path.unlink()
        for name in wanted:
            to = self.folder / name
            to.parent.mkdir(parents=True, exist_ok=True)
            if to.is_symlink():
                to.unlink()
            shutil.copy2(ROOT / name, to, follow_symlinks=False)

    def passes(
        self, tests: Sequence[str], limit_s: float = LIMIT_S, options: Sequence[str] = (),
        **environment: str,
    ) -> bool:  # fmt: skip
        """Whether the tests pass here; not where they do not end."""
        chosen = self.folder / ".tests"  # there may be more than a command line holds
        chosen.write_text("\n".join(tests), "utf-8")
        command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "-m", MARKS]
        cache = os.environ.get("UGPU_TEST_CACHE", str(ROOT / "build" / "test-cache"))
        whole = os.environ | {"UGPU_TEST_CACHE": cache} | environment
        whole.pop("PYTHONPATH", None)
        try:
            done = subprocess.run(
                [*command, *options, f"@{chosen}"], cwd=self.folder, env=whole, timeout=limit_s,
                check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def reach(self, tests: Sequence[str], files: Sequence[str]) -> Reach | None:
        """Which of the tests reach which lines of the files; None where a test fails."""
        output = self.folder / ".reach"
        watched = {OUTPUT: str(output), FILES: os.pathsep.join(files)}
        passed = self.passes(tests, options=("-p", "lab.mutants.reach"), **watched)
        return Reach.read(output) if passed else None

    def survives(self, mutant: Mutant, reach: Reach) -> bool:
        """Plant a mutant, run its tests, put the file back. Its modification time follows from its
        content, so that no byte code is taken for another's, of this run or an earlier one."""
        path = self.folder / mutant.file
        text, before = path.read_text("utf-8"), path.stat()
        near = reach.tests(mutant.file, mutant.lines(text))
        planted = mutant.planted(text)
        path.write_text(planted, "utf-8")
        stamp = zlib.crc32(planted.encode())
        os.utime(path, (stamp, stamp))
        try:
            limit_s = LEAST_S + PATIENCE * sum(reach.seconds.get(test, 0.0) for test in near)
            if near and not self.passes(near, min(limit_s, LIMIT_S)):
                return False
            return self.passes(mutant.tests)
        finally:
            path.write_text(text, "utf-8")
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


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
    found = planting.listed()
    chosen = [m for m in found if not words or any(w in str(m) or w == m.list_ for w in words)]
    lost = [mutant for mutant in chosen if not mutant.has_place()]
    for mutant in lost:
        print(f"LOST     {mutant}: the code has changed; find the bug a new place", flush=True)
    chosen = [mutant for mutant in chosen if mutant not in lost]
    reached: dict[tuple[str, ...], Reach] = {}
    survivors: list[Mutant] = []
    killed: Counter[str] = Counter()

    def control(tests: tuple[str, ...], copy: Copy) -> None:
        files = sorted({mutant.file for mutant in chosen if mutant.tests == tests})
        reach = copy.reach(tests, files)
        if reach is None and copy.passes(tests):  # tests that count objects see the watch's
            reach = Reach({}, {})
        if reach is None:
            print(f"these fail without any mutant: {' '.join(tests)}", flush=True)
        else:
            reached[tests] = reach

    def plant(mutant: Mutant, copy: Copy) -> None:
        alive = copy.survives(mutant, reached[mutant.tests])
        if alive:
            survivors.append(mutant)
        else:
            killed[mutant.list_] += 1
        print(f"{'SURVIVED' if alive else 'killed  '} {mutant}", flush=True)

    sets = sorted({mutant.tests for mutant in chosen})
    each([partial(control, tests) for tests in sets])
    sound = [mutant for mutant in chosen if mutant.tests in reached]
    each([partial(plant, mutant) for mutant in sound])
    for name, count in sorted(Counter(mutant.list_ for mutant in sound).items()):
        print(f"{name}: {killed[name]} of {count}")
    for mutant in survivors:
        print(f"survived: {mutant}")
    print(f"mutants: {killed.total()} of {len(sound)} killed", flush=True)
    red = len(sets) - len(reached)
    return 1 if red or lost or killed.total() < GOAL * len(sound) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
