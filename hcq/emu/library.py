"""Compile the native functions that kernels share, and make their names known to the linker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from hcq.emu import jit
from hcq.emu.text import PROFILES

# What makes the IR of some functions and the declarations it needs; which of them others may call.
Part = tuple[Callable[[], tuple[str, set[str]]], Sequence[str]]


def compiled(package: Path, folder: Path | None, title: str, parts: Iterable[Part]) -> jit.Loaded:
    """Compile functions, or take them from the cache in `folder`; publish those that others call.

    package: whose sources decide what is made. The caller keeps the result as long as they may run.
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
    key = jit.key_of(package, title, ir)
    image = jit.ObjectCache(folder).made(key, partial(jit.compile_object, ir, jit.FULL, 1))
    loaded = jit.Loaded(image)
    for name in names:
        jit.publish(name, loaded.address(name))
    return loaded
