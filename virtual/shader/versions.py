"""Two versions of a translated kernel: one that compiles fast, and one that runs fast.

The first runs at once. The second is compiled behind the program once the kernel is launched often
or for long, and takes the first one's place between two calls of it. Both give equal results, and
keep the state of a wave that waits alike. If the second fails, the first stays.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.objects import jit, recompile, stack
from ugpu.hcq.objects.elf import undefined_names
from ugpu.hcq.state.config import config
from ugpu.virtual.shader.library import Library

log = logging.getLogger(__name__)

QUICK, CAREFUL = 0, 1  # levels of code generation
OFTEN = 3  # launches after which the second version is worth compiling
LONG_S = 0.1  # the same for seconds of work
# Bytes of IR up to which there is a first version. Its frame has every value: 0.1 MB for 0.7 MB.
MOST = 8 << 20


class Versions:
    """The kernels of one core, in two versions on disk. Thread-safe.

    packages: folders whose sources determine the code. objects: the cache. name: of the function
    that a kernel's IR defines. library: of the functions that kernels call.
    """

    def __init__(
        self,
        packages: tuple[Path, ...],
        objects: jit.ObjectCache,
        name: str,
        library: Library | None = None,
    ) -> None:
        self.library = library
        self.packages = packages
        self.objects = objects
        self.name = name
        self.failures = 0

    def code(
        self, ir: Callable[[], str], *parts: bytes | str | int, both: bool = True,
        first: Callable[[], str] | None = None,
    ) -> Code:  # fmt: skip
        """Return a kernel's code. ir: makes its IR; also called later, in another thread. parts:
        all that the IR depends on. both: whether a first version has a second. first: makes IR that
        is compiled without LLVM's passes, for the first version; None: it has the second one's."""
        keys = [jit.key_of(self.packages, *parts, level) for level in (QUICK, CAREFUL)]
        best = self.objects.get(keys[CAREFUL])
        if best is not None:
            return Code(self, best)
        image = self.objects.get(keys[QUICK])
        level = QUICK if config().tiers or not both else CAREFUL
        if image is None or level == CAREFUL:
            passes, text = jit.LIMITED, ""
            if level == QUICK and first is not None:
                passes, text = jit.NO_PASSES, first()
            if not text or len(text) > MOST:
                passes, text = jit.LIMITED, ir()
                level = CAREFUL if len(text) > MOST else level
            make = partial(jit.compile_object, text, passes, level)
            image = self.objects.made(keys[level], make)
        return Code(self, image, (ir, keys[CAREFUL]) if both and level == QUICK else None)

    def failed(self, error: UgpuError) -> None:
        """Report that a second version could not be made: the first time as a warning."""
        self.failures += 1
        level = logging.WARNING if self.failures == 1 else logging.DEBUG
        log.log(level, "a translated kernel runs slower: its second version failed: %s", error)


class Code:
    """The native code of one kernel.

    Attributes:
        address: of the function to call; changes once. Both versions stay in memory, because a call
            of the first may be under way.
        mark: the first address, which identifies the kernel.
        frame: bytes of stack that the function takes; a first version takes more than its second.
    """

    def __init__(
        self, versions: Versions, image: bytes, second: tuple[Callable[[], str], str] | None = None
    ) -> None:
        self._versions = versions
        self._loaded = [jit.Loaded(image, quick=second is not None)]
        self._second = second
        self._calls = undefined_names(image) if second is not None else []
        self._launches = 0
        self.frame = stack.frame_of(image, versions.name)
        self.address = self.mark = self._loaded[0].address(versions.name)

    def launched(self, spent_s: float) -> None:
        """Count a launch that took `spent_s` seconds of work. One thread at a time."""
        self._launches += 1
        if self._second is None or (self._launches < OFTEN and spent_s < LONG_S):
            return
        (ir, key), self._second = self._second, None
        if self._versions.library is not None:
            self._versions.library.improve(self._calls)
        done = partial(_replace, weakref.ref(self), self._versions, key)
        recompile.SHARED.get().submit(recompile.Order(ir, jit.LIMITED, CAREFUL, done))

    def replace(self, image: bytes) -> None:
        """Have later calls run the second version."""
        self._loaded.append(jit.Loaded(image))
        self.address = self._loaded[-1].address(self._versions.name)


def _replace(
    code: weakref.ref[Code], versions: Versions, key: str, result: bytes | UgpuError
) -> None:
    if isinstance(result, UgpuError):
        versions.failed(result)
        return
    versions.objects.put(key, result)
    there = code()
    if there is not None:
        there.replace(result)
