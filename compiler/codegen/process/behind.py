"""Compiling behind the program: second versions of kernels, by child processes of low priority."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ugpu.compiler.codegen.process.children import Child
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.objects import behind as hcq_behind
from ugpu.hcq.state.target import TargetSpec


@dataclass(frozen=True)
class Order:
    """A kernel to compile. done: called with its object, or the error, in another thread; it must
    not raise."""

    text: str
    target: TargetSpec
    done: Callable[[bytes | UgpuError], None]


class Behind(hcq_behind.Behind[Child, Order]):
    """A queue of kernels; see hcq.objects.behind."""

    def child(self) -> Child:
        """Return a compiling process."""
        return Child(nice=hcq_behind.NICE)

    def carry_out(self, child: Child, order: Order) -> None:
        """Compile a kernel."""
        result: bytes | UgpuError
        try:
            result = child.compile(order.text, order.target).image
        except UgpuError as error:
            result = error
        if not self.closed:
            order.done(result)


SHARED = hcq_behind.Shared(Behind)


def behind() -> Behind:
    """Return the queue of this process (a forked one gets its own); closed at exit."""
    return SHARED.get()
