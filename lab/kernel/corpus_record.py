"""Which operations of the corpus came out right in a guest, kept from run to run.

A guest is slow, so that the corpus takes several runs. The file has a line for each operation that
was right, with the commit of that run. Once it has all of them, the next run begins a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.changed import Checkout

RECORD = "corpus.txt"
_NO_COMMIT = "unknown"


def read(path: Path) -> dict[str, str]:
    """Return the commit at which each operation of the list came out right."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else ()
    return dict(line.split() for line in lines)


def part_of(text: str) -> tuple[int, int]:
    """Read "i/n", from 1, as a part's index from 0 and the number of parts."""
    first, _, count = text.partition("/")
    part = (int(first) - 1, int(count))
    if not 0 <= part[0] < part[1]:
        raise ValueError(f"expected i/n with i of 1 to n, found {text!r}")
    return part


@dataclass(frozen=True)
class CorpusRecord:
    """The list in a file. A run extends it."""

    path: Path
    commit: str = field(default_factory=lambda: _commit(Checkout()))

    def begin(self, names: Sequence[str]) -> None:
        """Keep the list for a run; begin a new one if it has all the operations `names`."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.is_file() or set(names) <= read(self.path).keys():
            self.path.write_text("", encoding="utf-8")

    def add(self, name: str) -> None:
        """Note an operation as right."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{name} {self.commit}\n")


def _commit(checkout: Checkout) -> str:
    known = checkout.has_history()
    return checkout.git("rev-parse", "--short", "HEAD").strip() if known else _NO_COMMIT
