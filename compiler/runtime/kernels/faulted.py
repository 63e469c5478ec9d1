"""Find the line of a kernel's IR that an instruction was compiled from, after a kernel has failed.

Objects have no line tables, which would cost a tenth more compile time. The source of a table is
kept on disk beside the object; when it is needed, it is compiled to the same instructions.
"""

from __future__ import annotations

import json
import logging
import zlib

from ugpu.compiler.codegen.located import Emitted, lines_of_ptx, with_lines
from ugpu.compiler.codegen.process.children import shared
from ugpu.compiler.kernel import ir
from ugpu.compiler.kernel.text import printed
from ugpu.compiler.runtime.recent import Recent
from ugpu.hcq.disk.cache import DiskCache
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.objects.source_lines import lines_of, source_of
from ugpu.hcq.state.target import TargetSpec

log = logging.getLogger(__name__)

KEYS = 1 << 16  # names of kernels kept per device, about 200 bytes each


class Places:
    """The kernels of one device by name. keys: of their objects, see
    compiler.runtime.kernels.known."""

    def __init__(self, target: TargetSpec, disk: DiskCache) -> None:
        self._target = target
        self._disk = disk
        self.keys: Recent[str, str] = Recent(KEYS)

    def keep(self, kernel: ir.Kernel, key: str, module: Emitted) -> None:
        """Keep a kernel's IR and, for targets whose code can have line tables, the text it was
        compiled from."""
        if self._disk.folder is None:
            return
        text, places = printed(kernel)
        kept: dict[str, object] = {"ir": text}
        if self._target.abi in ("amdhsa", "ptx"):
            kept |= {"text": module.text, "spans": module.lines(places)}
        self._disk.put(_place(key), zlib.compress(json.dumps(kept).encode(), 1))

    def source(self, key: str) -> str:
        """Return the kernel IR of an object. LookupError if it was not kept."""
        data = self._disk.get(_place(key))
        if data is None:
            raise LookupError("the kernel's IR is not in the cache of compiled kernels")
        return str(json.loads(zlib.decompress(data))["ir"])

    def explain(self, error: UgpuError) -> dict[str, object]:
        """Return the fact `kernel_ir`: line and statement, for an error with `kernel` and `offset`,
        or `ptx_line` if the kernel is PTX. Never raises."""
        ptx = self._target.abi == "ptx"
        name, at = error.facts.get("kernel"), error.facts.get("ptx_line" if ptx else "offset")
        key = self.keys.get(name) if isinstance(name, str) else None
        if key is None or not isinstance(at, int):
            return {}
        try:
            data = self._disk.get(_place(key))
            if data is None:
                return {}
            kept = json.loads(zlib.decompress(data))
            text = with_lines(kept["text"], kept["spans"], directives=ptx)
            image = shared().submit(text, self._target, str(name)).result().image
            line = self._lines_of_ptx(key, image)[at - 1] if ptx else _line(image, at)
            statement = kept["ir"].splitlines()[line - 1].strip()
        except (UgpuError, ValueError, KeyError, TypeError, IndexError, zlib.error) as problem:
            log.warning("no line of kernel IR for %s: %s", name, problem)
            return {}
        return {"kernel_ir": f"line {line}: {statement}"} if line else {}

    def lines(self, name: str) -> list[tuple[int, int, int, str]]:
        """Return the machine code of a kernel by lines of kernel IR: start and end as offsets from
        its entry, line, statement. Empty if there is none, as for PTX. Never raises."""
        key = self.keys.get(name)
        try:
            data = None if key is None else self._disk.get(_place(key))
            if data is None or self._target.abi != "amdhsa":
                return []
            kept = json.loads(zlib.decompress(data))
            text = with_lines(kept["text"], kept["spans"], directives=False)
            image = shared().submit(text, self._target, name).result().image
            statements = kept["ir"].splitlines()
            rows = [(start, end, int(place.rpartition(":")[2]))
                    for start, end, place in lines_of(image, {})]  # fmt: skip
            return [(start, end, line, statements[line - 1].strip()) for start, end, line in rows]
        except (UgpuError, ValueError, KeyError, TypeError, IndexError, zlib.error) as problem:
            log.warning("no lines of kernel IR for %s: %s", name, problem)
            return []

    def text_lines(self, name: str) -> dict[int, tuple[int, str]]:
        """Return line and statement of kernel IR by the line of a kernel's PTX, both from 1. Empty
        if there is none. Never raises."""
        key = self.keys.get(name)
        try:
            data = None if key is None else self._disk.get(_place(key))
            if key is None or data is None or self._target.abi != "ptx":
                return {}
            kept = json.loads(zlib.decompress(data))
            text = with_lines(kept["text"], kept["spans"], directives=True)
            image = shared().submit(text, self._target, name).result().image
            statements = kept["ir"].splitlines()
            lines = enumerate(self._lines_of_ptx(key, image), 1)
            return {at: (line, statements[line - 1].strip()) for at, line in lines if line}
        except (UgpuError, ValueError, KeyError, TypeError, IndexError, zlib.error) as problem:
            log.warning("no lines of kernel IR for %s: %s", name, problem)
            return {}

    def _lines_of_ptx(self, key: str, located: bytes) -> list[int]:
        """Return the line of kernel IR of each line of an object's PTX; ValueError if the text with
        lines differs from it."""
        loaded, lines = self._disk.get(key), lines_of_ptx(located.decode())
        if loaded is None or loaded.decode().splitlines() != [text for text, _ in lines]:
            raise ValueError("the kernel's PTX is not in the cache, or differs")
        return [line for _, line in lines]


def _line(image: bytes, offset: int) -> int:
    """Return the line of an offset. A module has one function, which comes first."""
    return int(source_of(image, {}, offset).rpartition(":")[2] or 0)


def _place(key: str) -> str:
    return DiskCache.key("kernel ir", key)
