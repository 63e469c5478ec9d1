"""The line of a kernel's IR that an instruction was compiled from, found when a kernel has failed.

Objects have no line tables, which would cost a tenth more time to compile. The text with lines is
kept on disk beside the object; it is compiled to the same instructions when it is needed.
"""

from __future__ import annotations

import logging
import zlib

from compiler.codegen.children import shared
from compiler.codegen.emit import emit
from compiler.codegen.located import statement_of
from compiler.kernel import ir
from compiler.kernel.text import format_kernel
from hcq.diskcache import DiskCache
from hcq.errors import UgpuError
from hcq.sourcelines import source_of
from hcq.target import TargetSpec

log = logging.getLogger(__name__)


class Places:
    """The kernels of one device by name. keys: of their objects, see compiler.runtime.known."""

    def __init__(self, target: TargetSpec, disk: DiskCache) -> None:
        self._target = target
        self._disk = disk
        self.keys: dict[str, str] = {}

    def keep(self, kernel: ir.Kernel, key: str) -> None:
        """Keep a kernel's IR, and for targets whose objects can have line tables its text with
        lines."""
        if self._disk.folder is not None:
            self._disk.put(_ir_place(key), zlib.compress(format_kernel(kernel).encode(), 1))
        if self._target.abi == "amdhsa" and self._disk.folder is not None:
            text = emit(kernel, self._target, lines=True)
            self._disk.put(self._place(key), zlib.compress(text.encode(), 1))

    def source(self, key: str) -> str:
        """The kernel IR of an object. LookupError where it was not kept."""
        data = self._disk.get(_ir_place(key))
        if data is None:
            raise LookupError("the kernel's IR is not in the cache of compiled kernels")
        return zlib.decompress(data).decode()

    def explain(self, error: UgpuError) -> dict[str, object]:
        """The fact `kernel_ir` for an error with `kernel` and `offset`: line and statement. Never
        raises."""
        name, offset = error.facts.get("kernel"), error.facts.get("offset")
        key = self.keys.get(name) if isinstance(name, str) else None
        if key is None or not isinstance(offset, int):
            return {}
        try:
            data = self._disk.get(self._place(key))
            if data is None:
                return {}
            text = zlib.decompress(data).decode()
            image = shared().submit(text, self._target, str(name)).result().image
            source = source_of(image, {}, offset)  # a module has one function, which comes first
        except (UgpuError, ValueError, zlib.error) as problem:
            log.warning("no line of kernel IR for %s: %s", name, problem)
            return {}
        line = int(source.rpartition(":")[2] or 0)
        return {"kernel_ir": f"line {line}: {statement_of(text, line)}"} if line else {}

    @staticmethod
    def _place(key: str) -> str:
        return DiskCache.key("lines", key)


def _ir_place(key: str) -> str:
    return DiskCache.key("kernel ir", key)
