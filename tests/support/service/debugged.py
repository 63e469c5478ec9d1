"""Run scripts under `ugpu debug` with commands of a file, for tests."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ugpu.hcq.device import debugging
from ugpu.tools import cli


class Debug:
    """Runs scripts in a folder; returns the exit code and what was shown."""

    def __init__(self, folder: Path, captured: pytest.CaptureFixture[str]) -> None:
        self._folder, self._captured = folder, captured

    def __call__(
        self, script: str, commands: str, image: bytes = b"", *more: str
    ) -> tuple[int, str]:
        """image: of a file whose path is the script's argument. more: options."""
        folder = self._folder
        for name, content in (("job.py", script), ("commands", commands)):
            (folder / name).write_text(content)
        (folder / "image").write_bytes(image)
        words = ["debug", "--commands", str(folder / "commands"), *more]
        before = signal.getsignal(signal.SIGINT)
        code = cli.main([*words, str(folder / "job.py"), str(folder / "image")])
        assert debugging.attached() is None
        assert signal.getsignal(signal.SIGINT) is before
        shown = self._captured.readouterr()
        return code, shown.out + shown.err
