"""The list of operations that came out right in a guest, and the parts of a long run."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.kernel.corpus_record import CorpusRecord, part_of, read


def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    path = tmp_path / "new" / "corpus.txt"
    assert read(path) == {}
    first = CorpusRecord(path, "a1")
    first.begin(["add", "mul"])
    first.add("add")
    second = CorpusRecord(path, "b2")
    second.begin(["add", "mul"])
    second.add("mul")
    assert read(path) == {"add": "a1", "mul": "b2"}
    second.begin(["add", "mul", "div"])  # the corpus has grown: what is new is left to do
    assert read(path) == {"add": "a1", "mul": "b2"}
    second.begin(["add", "mul"])
    assert read(path) == {}


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/0", "a/b", "-1/2", ""])
def test_a_part_is_one_of_those_there_are(text: str) -> None:
    with pytest.raises(ValueError):
        part_of(text)


def test_parts_are_numbered_from_one() -> None:
    assert [part_of(text) for text in ("1/1", "1/3", "3/3")] == [(0, 1), (0, 3), (2, 3)]
