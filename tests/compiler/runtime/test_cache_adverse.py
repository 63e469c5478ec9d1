"""What happens to the caches never happens to the user's run: whole programs on bad folders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import resource, sys
if sys.argv[1] != "0":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
import numpy as np
from ugpu.compiler import Tensor
from ugpu.compiler.runtime.runtime import kernel_log
array = np.arange(12, dtype=np.float32).reshape(3, 4)
with kernel_log() as kernels:
    for device in sys.argv[2:]:
        x = Tensor(array, device=device)
        found = (x.softmax() @ x.T + x.sum()).numpy()
        raised = np.exp(array - array.max(1, keepdims=True))
        wanted = raised / raised.sum(1, keepdims=True) @ array.T + array.sum()
        np.testing.assert_allclose(found, wanted, rtol=1e-4)
print(sum(kernel.from_disk for kernel in kernels), "of", len(kernels), "from disk")
"""


def start(folder: Path, *devices: str, limit: int = 0) -> subprocess.Popen[str]:
    environment = {**os.environ, "UGPU_CACHE": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(limit), *devices],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return out.strip()


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


DEVICES = ["cpu", pytest.param("virtual:navi31", marks=pytest.mark.slow)]


@pytest.mark.parametrize("device", DEVICES)
def test_processes_share_a_folder_and_damage_is_mended(tmp_path: Path, device: str) -> None:
    """Two write at the same time, a third finds it all; then every entry is damaged."""
    both = [start(tmp_path, device) for _ in range(2)]
    for process in both:
        finish(process)
    out = finish(start(tmp_path, device))
    found, _, count, *_ = out.split()
    assert found == count and int(count) >= 2, out
    for number, path in enumerate(files(tmp_path)):
        content = bytearray(path.read_bytes())
        if number % 3 == 0:
            content[len(content) // 2] ^= 0x40
        elif number % 3 == 1:
            del content[len(content) // 3 :]
        else:
            content = bytearray(b"\0" * 5000)
        path.write_bytes(content)
    assert finish(start(tmp_path, device)).startswith("0 of")
    assert finish(start(tmp_path, device)) == out


@pytest.mark.parametrize("device", DEVICES)
def test_a_full_disk(tmp_path: Path, device: str) -> None:
    """No file may grow beyond 300 bytes, as on a disk that fills up while it is written."""
    assert finish(start(tmp_path, device, limit=300)).startswith("0 of")
    assert [path for path in files(tmp_path) if path.name.startswith("new-")] == []


@pytest.mark.parametrize("kind", ["a file in the way", "no such device", "folders for entries"])
def test_folders_that_cannot_be_used(tmp_path: Path, kind: str) -> None:
    """/proc refuses new folders also to the superuser, as a disk mounted to be read does."""
    folder = tmp_path / "cache"
    if kind == "a file in the way":
        folder.write_text("not a folder")
    elif kind == "no such device":
        folder = Path("/proc/ugpu-cache")
    else:
        finish(start(folder, "cpu"))
        for path in files(folder / "kernels"):
            path.unlink()
            path.mkdir()
    assert finish(start(folder, "cpu")).startswith("0 of")
