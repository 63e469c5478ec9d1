"""A run of the tests writes to folders of its own: tests.support.folders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def run(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a test of this text as `make test` would."""
    (folder / "test_it.py").write_text(text)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST")
    }
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest"]
    return subprocess.run(
        [*pytest, "-p", "no:cacheprovider", *options, "--rootdir", str(folder), str(folder)],
        env=environment | {"UGPU_TEST_CACHE": str(folder / "kept"), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_what_a_test_writes_to_the_home_folder_fails_the_run(tmp_path: Path) -> None:
    text = "from pathlib import Path\ndef test_it():\n    (Path.home() / 'stray').touch()\n"
    for options in ((), ("-n", "1")):
        done = run(tmp_path, text, *options)
        assert done.returncode == 1, done.stdout
        assert "a test wrote to the home folder" in done.stdout and "/home/stray" in done.stdout


def test_caches_end_with_the_run_and_byte_code_stays(tmp_path: Path) -> None:
    text = (
        "import os\nfrom ugpu.hcq.state.config import config\n"
        "def test_it():\n"
        "    config().cache_folder.mkdir()\n"
        f"    open({str(tmp_path / 'said')!r}, 'w').write(str(config().cache_folder))\n"
        f"    assert str(config().objects_folder) == {str(tmp_path / 'kept' / 'objects')!r}\n"
    )
    done = run(tmp_path, text)
    assert done.returncode == 0, done.stdout
    assert not Path((tmp_path / "said").read_text()).parent.exists()
    assert list((tmp_path / "kept" / "bytecode").rglob("test_it*.pyc"))
    assert not list(tmp_path.glob("__pycache__"))
