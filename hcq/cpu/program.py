"""Programs of the cpu device, whose code can be replaced while it runs."""

from __future__ import annotations

from abc import abstractmethod

from ugpu.hcq.cpu.memory import CodeMemory
from ugpu.hcq.cpu.object import HostKernel, load_object
from ugpu.hcq.device.driver import Driver
from ugpu.hcq.errors import BadCodeObject, Closed
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.program import Program


class CodeDriver(Driver):
    """What programs use of hcq.cpu.driver.CpuDriver."""

    @abstractmethod
    def place_code(self, memory: CodeMemory) -> Buffer:
        """Return loaded code as a buffer, which owns it."""


class CpuProgram(Program):
    """Kernels that are entered through words of their memory. replacements: code that has run in
    place of its own, newest last; threads may be in all of it."""

    def __init__(self, driver: CodeDriver, memory: Buffer) -> None:
        super().__init__(driver.core, memory)
        self._driver = driver
        self.replacements: list[Buffer] = []

    def replace(self, image: bytes) -> None:
        """Launches that begin from now on run the new code, pieces of one that has begun either."""
        with self.core.lock:
            self.core.check_usable()
            if self.memory is None:
                raise Closed(f"{self!r} is closed")
            memory, kernels = load_object(image)
            try:
                self._check(kernels)
                owner = self._driver.place_code(memory)
            except BaseException:
                memory.close()
                raise
            owner.retired = self.memory.retired
            self.replacements.append(owner)
            words = self.memory.handle
            assert isinstance(words, CodeMemory)
            for kernel in self.values():
                words.put_word(kernel.details.word, kernels[kernel.name].code)

    def _check(self, kernels: dict[str, HostKernel]) -> None:
        if kernels.keys() != self.keys():
            raise BadCodeObject("other kernels", expected=[*self], found=[*kernels])
        for name, kernel in self.items():
            expected, code = kernel.details, kernels[name]
            if (code.kernarg_size, code.arguments) != (expected.kernarg_size, expected.arguments):
                raise BadCodeObject("the arguments of a kernel differ", kernel=name)

    def close(self) -> None:
        """Free the code, replacements included; idempotent."""
        super().close()
        while self.replacements:
            self.replacements.pop().close()
