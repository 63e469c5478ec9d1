"""A compiler that is not installed: the error names the extra that has it."""

from __future__ import annotations

import pytest

from ugpu.compiler.codegen.adreno import mesa
from ugpu.compiler.codegen.process import worker
from ugpu.compiler.codegen.process.children import ANSWER, MISSING, Child, request
from ugpu.hcq.errors import MissingDependency
from ugpu.hcq.state.target import TargetSpec

TARGET = TargetSpec(name="a630", abi="ir3", triple="", cpu="a630")


@pytest.fixture
def no_mesa(monkeypatch: pytest.MonkeyPatch) -> None:
    mesa.library.cache_clear()
    monkeypatch.setattr(mesa.importlib.util, "find_spec", lambda name: None)


@pytest.mark.usefixtures("no_mesa")
def test_the_library_is_missing() -> None:
    with pytest.raises(MissingDependency, match=r"ugpu\[adreno\].*pip install 'ugpu\[adreno\]'"):
        mesa.library()


def test_another_version_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    mesa.library.cache_clear()
    monkeypatch.setattr(mesa.metadata, "version", lambda name: "1.0")
    monkeypatch.setattr(
        mesa.importlib.util, "find_spec", lambda name: type("S", (), {"origin": ""})
    )
    with pytest.raises(MissingDependency, match=r"tinymesa .*ugpu\[adreno\].*found=1.0"):
        mesa.library()


def test_the_child_passes_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(text: str, target: TargetSpec, *, first: bool) -> bytes:
        raise MissingDependency("requires tinymesa", install="pip install 'ugpu[adreno]'")

    monkeypatch.setattr(worker, "compile_here", missing)
    message = worker.answer(request("", TARGET))
    assert ANSWER.unpack_from(message)[0] == MISSING
    child = Child()
    monkeypatch.setattr(child, "_answer", lambda request: message)
    with pytest.raises(MissingDependency, match="requires tinymesa") as caught:
        child.compile("", TARGET)
    assert caught.value.facts["install"] == "pip install 'ugpu[adreno]'"
    child.close()
