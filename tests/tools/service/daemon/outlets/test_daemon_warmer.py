"""Kernels that ugpud compiles ahead: a client of the machine finds them, whatever fails."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.service.daemon import DaemonProcess
from tests.support.waiting import until
from ugpu import hcq
from ugpu.compiler import Tensor, kernel_log
from ugpu.hcq.disk.cache import DiskCache
from ugpu.hcq.errors import BadArgument, HostError
from ugpu.hcq.state.config import setting
from ugpu.tools.service.daemon.cards.owned import Owned
from ugpu.tools.service.daemon.config import CacheSettings, parse
from ugpu.tools.service.daemon.outlets import warmer as module
from ugpu.tools.service.daemon.outlets.warmer import Warmer

PROGRAM = """
import numpy as np
from ugpu.compiler import Tensor
x = Tensor(np.arange(96, dtype=np.float32).reshape(8, 12))
assert x.device.name.startswith("ugpud:"), x.device.name
(x @ x.T).softmax().numpy()
"""


class NoCards:
    """A daemon without devices."""

    def __init__(self) -> None:
        self.owned: list[Owned] = []

    def wait_until_booted(self) -> None:
        pass


def warmer(folder: Path, *programs: Path, limit_s: float = 60.0) -> Warmer:
    settings = CacheSettings(programs, folder / "served", limit_s)
    return Warmer(settings, folder / "none.sock", NoCards())


@pytest.mark.slow
def test_a_client_compiles_nothing_that_the_daemon_has_compiled(tmp_path: Path) -> None:
    program, wrong = tmp_path / "model.py", tmp_path / "wrong.py"
    program.write_text(PROGRAM)
    wrong.write_text("raise ValueError('no such weights')")
    served = tmp_path / "served"
    more = f'[cache]\nwarm = ["{wrong}", "{program}"]\nfolder = "{served}"\nlimit_s = 120'
    with DaemonProcess(["virtual:navi31"], more) as daemon:
        until(lambda: f"kernels of {program} for virtual:navi31 are in" in daemon.log(), "compiled")
        assert "it ended with 1" in daemon.log() and "no such weights" in daemon.log()
        modes = {stat.S_IMODE(path.stat().st_mode) for path in (served / "kernels").iterdir()}
        assert modes == {0o644}
        own = tmp_path / "own"
        x = np.arange(96, dtype=np.float32).reshape(8, 12)
        with (
            setting("UGPU_CACHE", str(own)),
            setting("UGPU_TIERS", "0"),
            hcq.lease(daemon=daemon.socket, wait_s=60) as gpu,
            kernel_log() as kernels,
        ):
            there = Tensor(x, device=gpu)
            found = (there @ there.T).softmax().numpy()
        scores = x @ x.T
        weights = np.exp(scores - scores.max(1, keepdims=True))
        np.testing.assert_allclose(found, weights / weights.sum(1, keepdims=True), rtol=1e-5)
        assert kernels and all(kernel.from_disk for kernel in kernels)
        assert not list(own.glob("kernels/*"))


def test_a_further_folder_is_read_and_never_changed(tmp_path: Path) -> None:
    foreign = DiskCache(tmp_path / "foreign")
    key, damaged = DiskCache.key("a kernel"), DiskCache.key("another")
    foreign.put(key, b"code")
    foreign.put(damaged, b"code")
    path = tmp_path / "foreign" / damaged
    path.write_bytes(path.read_bytes()[:-1] + b"X")
    os.chmod(tmp_path / "foreign", 0o777)  # of no importance here: its owner may be anyone
    cache = DiskCache(tmp_path / "own", further=tmp_path / "foreign")
    assert cache.get(key) == b"code" and cache.get(damaged) is None
    assert path.exists()
    cache.put(damaged, b"own")
    assert cache.get(damaged) == b"own"
    cache.forget(key)
    assert cache.get(key) == b"code"
    (tmp_path / "foreign" / DiskCache.key("a pipe")).symlink_to("/dev/zero")
    assert cache.get(DiskCache.key("a pipe")) is None
    assert DiskCache(None, further=tmp_path / "foreign").get(key) == b"code"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("warm = []", "a list of programs, by absolute paths"),
        ('warm = ["model.py"]', "a list of programs, by absolute paths"),
        ('warm = ["/model.py"]\nfolder = "here"', "an absolute path"),
        ('warm = ["/model.py"]\nlimit_s = 0', "a positive number of seconds"),
        ('warm = ["/model.py"]\nwhen = 1', "unknown key when"),
    ],
)
def test_a_wrong_section_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadArgument, match=said):
        parse(f'[cache]\n{text}\n[[device]]\nname = "cpu"')


def test_a_missing_program_and_a_folder_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"missing\.py is not a file"):
        warmer(tmp_path, tmp_path / "missing.py")
    (tmp_path / "served").write_text("")
    with pytest.raises(HostError, match="served"):
        warmer(tmp_path)


def run_endless(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the program's process one that starts another and waits for it for ever."""
    text = "import subprocess\nother = subprocess.Popen(['sleep', '9999'])\n"
    (folder / "endless_toy.py").write_text(text + "print(other.pid, flush=True)\nother.wait()\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(module, "_PROGRAM", "endless_toy")


def lives(pid: int) -> bool:
    """Whether a process has not ended; one that waits to be collected has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_program_that_takes_too_long_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_endless(tmp_path, monkeypatch)
    read, printed = os.read, threading.Event()

    def reads(descriptor: int, size: int) -> bytes:
        part = read(descriptor, size)
        if part:
            printed.set()
        return part

    monkeypatch.setattr(os, "read", reads)  # the limit passes once the program has printed
    clock = SimpleNamespace(monotonic=lambda: 1000.0 if printed.is_set() else 0.0)
    monkeypatch.setattr(module, "time", clock)
    code, said = warmer(tmp_path)._ended(tmp_path, "any")
    pid = int(said.split()[0])
    assert code < 0 and "ended at its time limit" in said
    until(lambda: not lives(pid), "the other process has ended")


def test_closing_ends_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_endless(tmp_path, monkeypatch)
    there = warmer(tmp_path)
    ended: list[tuple[int, str]] = []
    thread = threading.Thread(target=lambda: ended.append(there._ended(tmp_path, "any")))
    thread.start()
    until(lambda: there._child is not None, "the program has begun")
    there.close()
    thread.join(60)
    assert ended[0][0] < 0
    assert there._ended(tmp_path, "any") == (0, "")
