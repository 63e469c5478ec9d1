"""The native functions that kernels share: each is compiled when code that calls it is loaded.

All functions of a core are 12,000 to 22,000 lines of IR, of which a kernel calls a few hundred.
Each has a first version, which compiles in a third of the time, for first versions of kernels
(virtual.shader.versions); those that such a kernel is the first to need are compiled as one module.
The second is compiled behind the program before that of such a kernel, which is linked to it: code
that is loaded keeps the functions that it calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.objects import jit, recompile
from ugpu.hcq.state.config import config
from ugpu.virtual.shader.text import PROFILES

# A function that returns the IR of some functions and their declarations; and which of them other
# code may call.
Part = tuple[Callable[[], tuple[str, set[str]]], Sequence[str]]

# All code lives as long as the process: code loaded later refers to it by name. Two threads that
# each make the first device have a library each, and both copies may be in use.
_LOADED: list[jit.Loaded] = []

_DEFINED = re.compile(r"^define (?:internal )?(?P<head>[^\n@]*@(?P<name>[\w.]+)\(.*?)\{\n.*?^\}\n",
                      re.DOTALL | re.MULTILINE)  # fmt: skip
_CONSTANT = re.compile(r"^@(?P<name>[\w.]+) = internal .*\n", re.MULTILINE)
_USED = re.compile(r"@([\w.]+)")


class Library:
    """The functions of one core, and their code once it is needed. Thread-safe.

    packages: folders whose sources determine the code. folder: of cached code; None keeps it in
    memory only. title: of the library in cache keys. Code stays as long as the process.
    """

    def __init__(
        self, packages: tuple[Path, ...], folder: Path | None, title: str, parts: Iterable[Part]
    ) -> None:
        self._packages = packages
        self._title = title
        self._cache = jit.ObjectCache(folder)
        self._parts = tuple(parts)
        self._code: dict[str, jit.Loaded] = {}
        self._first: dict[str, jit.Loaded] = {}
        self._ordered: set[str] = set()
        self._made: dict[str, bytes] = {}  # second versions that were compiled behind the program
        self._public = frozenset(name for _, names in self._parts for name in names)
        jit.offer(self._public, self.addresses)

    def address(self, name: str, quick: bool = False) -> int:
        """Return the address of a function, see `addresses`."""
        return self.addresses([name], quick)[0]

    def addresses(self, names: Sequence[str], quick: bool) -> list[int]:
        """Return the addresses of functions; compile those that are not loaded. quick: first
        versions are enough."""
        with jit.linking():
            if quick and config().tiers:
                self._load_first(names)
            found = []
            for name in names:
                code = self._code.get(name) or (self._first.get(name) if quick else None)
                found.append((code or self._load(name)).address(name))
            return found

    def _load_first(self, names: Sequence[str]) -> None:
        """Load first versions of functions, and of those that they call, as one module: as far as
        neither version is loaded, and the disk lacks a second one."""
        group: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in group or name in self._first or name in self._code:
                continue
            ir = self._module({name})
            if self._cache.get(self._key(ir)) is None:
                group.add(name)
                waiting += self._public.intersection(_USED.findall(ir))
        if not group:
            return
        ir = self._module(group)
        make = partial(jit.compile_object, ir, jit.LIMITED, 0)
        image = self._cache.made(jit.key_of(self._packages, self._title, ir, "first"), make)
        loaded = jit.Loaded(image, quick=True)
        _LOADED.append(loaded)
        self._first.update(dict.fromkeys(group, loaded))

    def _load(self, name: str) -> jit.Loaded:
        ir = self._module({name})
        image = self._made.pop(name, b"") or self._cache.made(
            self._key(ir), partial(jit.compile_object, ir, jit.FULL, 1)
        )
        self._code[name] = jit.Loaded(image)
        _LOADED.append(self._code[name])
        return self._code[name]

    def _key(self, ir: str) -> str:
        return jit.key_of(self._packages, self._title, ir)

    def improve(self, names: Iterable[str]) -> None:
        """Have the second versions of these functions compiled behind the program, and kept on
        disk, as far as they have only first ones; and of those that they call."""
        with jit.linking():
            for name in names:
                if name not in self._first or name in self._code or name in self._ordered:
                    continue
                self._ordered.add(name)
                ir = self._module({name})
                done = partial(self._keep, name, self._key(ir))
                order = recompile.Order(partial(str, ir), jit.FULL, 1, done)
                recompile.SHARED.get().submit(order)
                self.improve(_USED.findall(ir))

    def improved(self, name: str) -> bool:
        """Return whether the second version of a function has been compiled behind the program:
        `address` loads it without compiling."""
        return name in self._made

    def _keep(self, name: str, key: str, result: bytes | UgpuError) -> None:
        """Keep a second version. After an error it is compiled by what loads a kernel that calls
        it."""
        if not isinstance(result, UgpuError):
            self._cache.put(key, result)
            self._made[name] = result

    @cached_property
    def _texts(self) -> tuple[dict[str, re.Match[str]], dict[str, str], list[str]]:
        """The functions and constants by name, and the declarations of what others define."""
        texts: list[str] = []
        declarations: set[str] = set()
        for make, _ in self._parts:
            text, needed = make()
            texts.append(text)
            declarations |= needed
        text = "\n".join([*texts, ""])
        functions = {match["name"]: match for match in _DEFINED.finditer(text)}
        constants = {match["name"]: match[0] for match in _CONSTANT.finditer(text)}
        return functions, constants, sorted(declarations)

    def _module(self, roots: Collection[str]) -> str:
        """Return the IR of functions and of the internal ones that they call; they get other public
        ones when their object is loaded."""
        functions, constants, declarations = self._texts
        public = self._public.difference(roots)
        lines: dict[str, str] = {}
        waiting = sorted(roots)
        while waiting:
            name = waiting.pop()
            if name in lines:
                continue
            if name in constants:
                lines[name] = constants[name]
            elif name in functions and name in public:
                lines[name] = f"declare {functions[name]['head']}\n"
            elif name in functions:
                lines[name] = functions[name][0]
                waiting.extend(reversed(_USED.findall(functions[name][0])))
        return "\n".join([*lines.values(), *declarations, PROFILES])
