"""The gate sees each kind of broken promise; `make check` runs it on the tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from ugpu.tools.house import promises
from ugpu.tools.verbs.verb import load

DOCUMENTED = '"""What it is."""\n'
RECORD = (
    '@dataclass\nclass A:\n    """A record.\n\n    Attributes:\n        at: a place.\n    """\n'
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout that keeps all promises."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "tasks.md").write_text("# Known gaps\n\n## wave64\n\nNone.\n")
    shown = "".join(f"    ugpu {name} X   what it does\n" for name in load())
    (tmp_path / "README.md").write_text(shown)
    write(tmp_path, "hcq/work/queue.py", DOCUMENTED)
    assert promises.check(tmp_path) == []
    return tmp_path


def write(tree: Path, name: str, text: str) -> None:
    (tree / name).parent.mkdir(parents=True, exist_ok=True)
    (tree / name).write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("README.md", "    ugpu fly DEVICE   up and away\n", "shows `ugpu fly`"),
        ("README.md", "", "does not show `ugpu demo`"),
        ("docs/tasks.md", "## wave64\n\n## wave64\n", "the key wave64 occurs twice"),
        ("hcq/a.py", DOCUMENTED + "# TODO[wings]: grow them\n", "no key 'wings'"),
        ("hcq/a.py", "x = 1\n", "hcq/a.py: the module has no docstring"),
        ("hcq/a.py", DOCUMENTED + "class A:\n    pass\n", "hcq/a.py:2: A has no docstring"),
        ("hcq/a.py", DOCUMENTED + "def f():\n    x = 1\n    return x\n", "f has no docstring"),
        ("hcq/a.py", DOCUMENTED + "__all__ = ['gone']\n", "exports gone"),
        ("hcq/a.py", DOCUMENTED + "A = 1\n__all__ = ['A', 'A']\n", "exported twice"),
        ("tests/a.py", "import time\ntime.sleep(1)\n", "tests/a.py:2: time.sleep() in a test"),
        ("tests/a.py", "from time import monotonic\n", "tests/a.py:1: time.monotonic() in a test"),
        ("tests/campaign/a.py", "import time\ntime.time()\n", "tests/campaign/a.py:2: time.time()"),
        ("hcq/remote/a.py", DOCUMENTED + "time.sleep(1)\n", "hcq/remote/a.py:2: time.sleep()"),
        (
            "tools/service/daemon/a.py",
            DOCUMENTED + "from time import sleep\n",
            "a.py:2: time.sleep()",
        ),
        ("virtual/adreno/a.py", DOCUMENTED + "time.sleep(1)\n", "a.py:2: time.sleep()"),
        ("qcom/a.py", DOCUMENTED + "time.monotonic()\n", "qcom/a.py:2: time.monotonic()"),
        (
            "tools/service/metrics/a.py",
            DOCUMENTED + "os.environ['A']\n",
            "a.py:2: os.environ; settings",
        ),
        ("am/a.py", DOCUMENTED + "os.getenv('A')\n", "am/a.py:2: os.getenv; settings"),
        ("docs/a.md", "A page.\n\nWhoever waits is told.\n", "docs/a.md:3: 'Whoever'"),
        ("docs/a.md", "3 is no tensor\n", "docs/a.md:1: 'is no t'"),
        ("am/a.py", '"""What a chip says\nof itself."""\n', "am/a.py:1: 'says of itself'"),
        ("am/a.py", DOCUMENTED + "A = 'the function has not so many'\n", "am/a.py:2: 'has not so"),
        ("am/a.py", DOCUMENTED + "A = 1  # nobody reads it\n", "am/a.py:2: 'nobody'"),
        ("am/a.py", DOCUMENTED + "A = 'the driver says why'\n", "am/a.py:2: 'says why'"),
        ("hcq/state/a.py", DOCUMENTED + RECORD + "    size: int\n", "does not describe size"),
        ("hcq/state/a.py", DOCUMENTED + RECORD, "A describes at, which it does not have"),
        ("hcq/find/a.py", DOCUMENTED + "found = 1\n", "hcq/find/a.py:2: found; name"),
        ("usbgpu/a.py", DOCUMENTED + "print([one for one in ()])\n", "usbgpu/a.py:2: one; name"),
    ],
)
def test_a_breach_is_named(tree: Path, name: str, text: str, said: str) -> None:
    write(tree, name, text)
    assert any(said in fault for fault in promises.check(tree))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hcq/a.py", DOCUMENTED + "def _f():\n    x = 1\n    return x\n"),
        ("hcq/a.py", DOCUMENTED + "def f():\n    return 1\n"),
        ("hcq/a.py", DOCUMENTED + "def __getattr__(name): ...\n__all__ = ['lazy']\n"),
        ("lab/bench/a.py", "import time\ntime.sleep(1)\n"),
        ("tests/a.py", "clock.sleep(1)\n"),
        ("am/a.py", DOCUMENTED + "self.clock.sleep(1)\ntime.perf_counter()\n"),
        ("virtual/amd/a.py", DOCUMENTED + "time.monotonic()\n"),
        ("hcq/state/config.py", DOCUMENTED + "os.environ\n"),
        ("docs/a.md", "There is no fence; it is no longer used, and is no faster.\n"),
        ("STYLE.md", "not: nobody\n"),
        ("hcq/find/a.py", DOCUMENTED + "def _f(found):\n    return found\n"),
        ("hcq/state/a.py", DOCUMENTED + RECORD + "    at: int\n    LIMIT: int = 1\n"),
        ("tools/verbs/a.py", DOCUMENTED + "found = 1\n"),
    ],
)
def test_what_is_no_breach(tree: Path, name: str, text: str) -> None:
    write(tree, name, text)
    assert promises.check(tree) == []
