"""Models as others published them, run by examples/: what they say is known from their authors.

magika: the type of files, https://pypi.org/project/magika. PP-OCR: words on a page that the example
draws. all-MiniLM-L6-v2: similarities as its
model card shows them for these sentences. The wheels are installed without what they depend on.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_examples import NEEDS

pytestmark = pytest.mark.foreign
ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "foreign"


def run(example: str, *arguments: str) -> str:
    """Install what an example needs, once, and run it; what it printed."""
    file = ROOT / "examples" / "models" / example
    needs = NEEDS.search(file.read_text("utf-8"))
    assert needs is not None
    folder = PLACE / f"packages-{file.stem}"
    if not folder.is_dir():
        words = [word for word in needs[1].split() if not word.startswith("-")]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps",
             "--cache-dir", str(PLACE / "pip"), "--target", str(folder), *words],
            # pip asks `rustc` for its version; rustup would make its folder in the home folder
            env={**os.environ, "RUSTUP_HOME": str(PLACE / "rustup")},
            capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"{' '.join(words)} cannot be installed: {done.stderr.splitlines()[-1]}")
    done = subprocess.run(
        [sys.executable, str(file), *arguments],
        env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("device", ["cpu", "virtual:navi31"])
@pytest.mark.parametrize(
    ("file", "kind"), [("README.md", "markdown"), ("Makefile", "makefile"), (__file__, "python")]
)
def test_magika_names_types_of_files(file: str, kind: str, device: str) -> None:
    said = run("onnx_model.py", str(ROOT / file), device).strip()
    assert re.search(rf": {kind} \((0\.9\d+|1\.000)\)$", said)


def test_the_words_on_the_page_are_read() -> None:
    lines = run("read_picture.py").splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == ["HELLO", "HOLE"]


def test_minilm_gives_the_similarities_of_its_card() -> None:
    found = [float(line.split()[0]) for line in run("sentence_similarity.py").splitlines()]
    assert found == pytest.approx([0.695, 0.943, 0.257], abs=2e-3)
