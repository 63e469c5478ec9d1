"""Compile the native functions that kernels share, and make their names known to the linker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from ugpu.hcq.objects import jit
from ugpu.virtual.shader.text import PROFILES

# A function that returns the IR of some functions and their declarations; and which of them other
# code may call.
Part = tuple[Callable[[], tuple[str, set[str]]], Sequence[str]]
# All code lives as long as the process: code loaded later refers to it by name. Two threads that
# each make the first device load it twice, and both copies may be in use.
_LOADED: list[jit.Loaded] = []


def compiled(
    packages: tuple[Path, ...], folder: Path | None, title: str, parts: Iterable[Part]
) -> jit.Loaded:
    """Compile functions, or load them from the cache in `folder`; publish those that other code
    calls.

    packages: folders whose sources determine the result. The code stays as long as the process.
    """
    texts: list[str] = []
    declarations: set[str] = set()
    names: list[str] = []
    for make, public in parts:
        text, needed = make()
        texts.append(text)
        declarations |= needed
        names += public
    ir = "\n".join([*texts, *sorted(declarations), PROFILES])
    key = jit.key_of(packages, title, ir)
    image = jit.ObjectCache(folder).made(key, partial(jit.compile_object, ir, jit.FULL, 1))
    loaded = jit.Loaded(image)
    _LOADED.append(loaded)
    for name in names:
        jit.publish(name, loaded.address(name))
    return loaded
