"""Where a run of the tests writes: nothing of the user's, and what may be kept is kept.

    UGPU_TEST_CACHE/objects    what compilers made of each text (hcq.disk.objects); bounded
    UGPU_TEST_CACHE/bytecode   Python's byte code and pytest's rewritten tests, of this checkout
    a temporary folder         the home folder and all caches of what is tested; ends with the run

UGPU_TEST_CACHE is build/test-cache in the checkout unless the environment says otherwise. Runs and
checkouts may use one at the same time.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Folders:
    """The folders of one run. own: the temporary one, None in a worker of pytest-xdist, which has
    inherited the run's environment."""

    own: Path | None

    @classmethod
    def prepare(cls) -> Folders:
        """Point this process, and those it starts, to the folders of a run."""
        if "PYTEST_XDIST_WORKER" in os.environ:
            return cls(None)
        given = os.environ.get("UGPU_TEST_CACHE")
        kept = Path(given).resolve() if given else ROOT / "build" / "test-cache"
        sys.pycache_prefix = str(kept / "bytecode")
        sys.dont_write_bytecode = False
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        own = Path(tempfile.mkdtemp(prefix="ugpu-tests-"))
        (own / "home").mkdir()
        os.environ |= {
            "PYTHONPYCACHEPREFIX": sys.pycache_prefix,
            "UGPU_OBJECTS": str(kept / "objects"),
            "UGPU_TIERS": "0",  # tests of two versions set it to 1
            "UGPU_CACHE": str(own / "cache"),
            "UGPU_CRASHES": "0",
            "UGPU_OBSERVE": "0",
            "NIR_DEBUG": os.environ.get("NIR_DEBUG", ""),  # Mesa validates what we give it
            "HOME": str(own / "home"),
            "XDG_CACHE_HOME": str(own / "home" / ".cache"),
        }
        return cls(own)

    def strays(self) -> list[Path]:
        """What tests left in the home folder."""
        return [] if self.own is None else sorted((self.own / "home").rglob("*"))

    def close(self) -> None:
        """Remove the temporary folder."""
        if self.own is not None:
            shutil.rmtree(self.own, ignore_errors=True)
