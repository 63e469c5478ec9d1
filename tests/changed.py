"""Which commit this is, and which test files the last commits changed.

A file that was only renamed, or in which only imports, comments, docstrings or layout changed,
tests what it tested before and does not count.
"""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NUMBER = "UGPU_TEST_NUMBER"
COMMITS = 50
RENAMES = "10000"  # at most as many files are compared with each other to find the renamed ones


@dataclass(frozen=True)
class Checkout:
    """A folder and its history. All questions are answered by git."""

    folder: Path = ROOT

    def git(self, *arguments: str, given: str = "") -> str:
        command = ["git", *arguments]
        ended = subprocess.run(
            command, cwd=self.folder, input=given.encode(), check=True, capture_output=True
        )
        return ended.stdout.decode()

    def has_history(self) -> bool:
        """Whether there is a git to ask, and a commit."""
        try:
            self.git("rev-parse", "HEAD")
        except (FileNotFoundError, subprocess.CalledProcessError):
            return False
        return True

    def number(self) -> int:
        """The commit's number: how many commits lead to it, or what the environment names instead.
        In a shallow clone, which does not know, a number that its name gives; 0 without history."""
        if given := os.environ.get(NUMBER):
            return int(given)
        if not self.has_history():
            return 0
        if self.git("rev-parse", "--is-shallow-repository").strip() == "true":
            return int(self.git("rev-parse", "HEAD")[:8], 16)
        return int(self.git("rev-list", "--count", "HEAD"))

    def changed(self, commits: int = COMMITS) -> list[str]:
        """Test files that test something else than so many commits ago, the latest first."""
        if not self.has_history():
            return []
        names = self.git("rev-list", f"--max-count={commits + 1}", "--first-parent", "HEAD").split()
        base = names[-1]
        pairs = list(self._pairs(base))
        old = self._texts([f"{base}:{before}" for before, _ in pairs if before])
        new = self._texts([f"HEAD:{now}" for _, now in pairs])
        files = [
            now
            for before, now in pairs
            if not before or differ(old[f"{base}:{before}"], new[f"HEAD:{now}"])
        ]
        log = self.git("log", "--format=", "--name-only", "--first-parent", "-m", f"{base}..HEAD")
        order = {file: place for place, file in reversed([*enumerate(log.splitlines())])}
        return sorted(files, key=lambda file: (order.get(file, len(order)), file))

    def _pairs(self, base: str) -> Iterator[tuple[str, str]]:
        """Name before and now of each changed test file; before is "" for a new file."""
        lines = self.git("diff", "-z", "-M", f"-l{RENAMES}", "--name-status", base, "HEAD")
        words = iter(lines.split("\0"))
        for status in words:
            if not status:
                continue
            before = next(words)
            now = next(words) if status[0] in "RC" else before
            if status[0] != "D" and Path(now).name.startswith("test_") and now.endswith(".py"):
                yield ("" if status[0] == "A" else before), now

    def _texts(self, names: Sequence[str]) -> dict[str, str]:
        """The files of commits, by COMMIT:PATH."""
        lines = "".join(f"{name}\n" for name in names)
        sizes = self.git("cat-file", "--batch-check=%(objectsize)", given=lines).split()
        rest = self.git("cat-file", "--batch=", given=lines).encode()
        texts, place = {}, 0
        for name, size in zip(names, map(int, sizes), strict=True):
            texts[name] = rest[place + 1 : place + 1 + size].decode()  # between two line ends
            place += size + 2
        return texts


class _Imports(ast.NodeTransformer):
    """Takes imports and docstrings away."""

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if text else node


def meaning(source: str) -> str:
    """What a file of Python does, without imports, comments, docstrings and layout."""
    return ast.dump(_Imports().visit(ast.parse(source)))


def differ(old: str, new: str) -> bool:
    """Whether two versions of a file do something else."""
    first, second = (
        [line for line in text.splitlines() if not line.lstrip().startswith(("import ", "from "))]
        for text in (old, new)
    )
    return first != second and meaning(old) != meaning(new)
