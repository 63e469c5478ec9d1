"""PTX to machine code: both assemblers, their logs, and the cache."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nvidia import ptx_kernels
from tests.support.nvidia.nv_ptx import TARGETS, full
from ugpu.hcq.errors import BadCodeObject, MissingDependency
from ugpu.nv.code import assemble as module
from ugpu.nv.code.assemble import Assembler, Ptxas, assemble, find_assembler

WRONG = b".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry k() { foo; ret; }\n"


@pytest.mark.parametrize("target", TARGETS)
def test_assembles_for_every_architecture(target: str) -> None:
    assert assemble(full(target), target).startswith(b"\x7fELF")


def test_an_error_carries_the_line_and_the_log() -> None:
    with pytest.raises(BadCodeObject, match=r"line 4.*foo") as caught:
        assemble(WRONG, "sm_90")
    assert "ptxas fatal" in str(caught.value.facts["log"])


def test_an_unknown_architecture_is_named() -> None:
    for target in ("sm_11", "gfx1100", "sm_90; rm", ""):
        with pytest.raises(BadCodeObject):
            assemble(WRONG, target)


def test_the_cache_answers_without_an_assembler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = assemble(full("sm_90"), "sm_90", tmp_path)

    class Silent:
        name = find_assembler().name

        def assemble(self, ptx: bytes, target: str, options: tuple[str, ...] = ()) -> bytes:
            raise AssertionError("asked again")

    monkeypatch.setattr(module, "find_assembler", Silent)
    monkeypatch.setattr(module, "kept", lambda make, *inputs: make())  # of earlier runs
    assert assemble(full("sm_90"), "sm_90", tmp_path) == first
    with pytest.raises(AssertionError):
        assemble(full("sm_86"), "sm_86", tmp_path)


def test_a_damaged_file_counts_as_absent(tmp_path: Path) -> None:
    first = assemble(full("sm_75"), "sm_75", tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    assert assemble(full("sm_75"), "sm_75", tmp_path) == first


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert assemble(full("sm_90"), "sm_90", blocked / "cache").startswith(b"\x7fELF")


def _program(folder: Path, body: str) -> str:
    path = folder / "ptxas"
    path.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_ptxas_as_the_second_way(tmp_path: Path) -> None:
    good = _program(
        tmp_path,
        "a = sys.argv\n"
        "if '--version' in a: print('Cuda compilation tools, release 13.0, V13.0.88')\n"
        "else: open(a[a.index('-o') + 1], 'wb').write(b'code for ' + a[1].encode())",
    )
    ptxas = Ptxas(good)
    assert ptxas.name == "ptxas 13.0.88"
    assert ptxas.assemble(full("sm_90"), "sm_90") == b"code for -arch=sm_90"


def test_what_ptxas_says_is_in_the_error(tmp_path: Path) -> None:
    bad = _program(tmp_path, "print('ptxas x.ptx, line 9; error : odd', file=sys.stderr); exit(1)")
    with pytest.raises(BadCodeObject, match="line 9; error : odd"):
        Ptxas(bad).assemble(WRONG, "sm_90")


def test_without_any_assembler_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_library", lambda: None)
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    find_assembler.cache_clear()
    try:
        with pytest.raises(MissingDependency, match=r"pip install 'ugpu\[nv\]'") as caught:
            assemble(WRONG, "sm_90")
        assert caught.value.facts["install"] == "pip install 'ugpu[nv]'"
    finally:
        find_assembler.cache_clear()


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[Assembler]:
    """The assembler of a program that serves clients."""
    monkeypatch.setattr(module, "_apart", False)
    module.assemble_apart()
    yield find_assembler()
    find_assembler.cache_clear()


@pytest.mark.slow
def test_a_process_apart_assembles_the_same(apart: Assembler) -> None:
    path = module.find_library()
    assert path is not None and isinstance(apart, module.JitLinkApart)
    ptx = ptx_kernels.text(ptx_kernels.FAULTY, "sm_90")
    assert apart.name == module.JitLink(path).name
    assert apart.assemble(ptx, "sm_90") == module.JitLink(path).assemble(ptx, "sm_90")
    with pytest.raises(BadCodeObject, match=r"PTX does not assemble: .*error"):
        apart.assemble(ptx.replace(b"ret;", b"retreat;"), "sm_90")


@pytest.mark.slow
def test_an_assembler_that_crashes_is_the_texts_error(
    apart: Assembler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHILD", "import os; os.abort()")
    with pytest.raises(BadCodeObject, match="ended with status -6 at this PTX"):
        apart.assemble(b".version 8.0", "sm_90")
