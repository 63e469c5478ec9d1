"""What a null device has of a chip, from the chip's driver: facts, and how to read its programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ugpu.hcq.objects.argument import Argument
from ugpu.hcq.state.target import TargetSpec


@dataclass(frozen=True)
class ReadKernel:
    """A kernel of a code object, as the chip's driver reads it.

    Attributes:
        name: as in the code object.
        kernarg_size: bytes of the argument block.
        arguments: None if the code object does not declare them.
        local_size: bytes of static local memory per group.
        private_size: bytes of scratch per thread that the code object states.
        code_bytes: of its machine code; with `instruction_bytes`, the number of instructions.
    """

    name: str
    kernarg_size: int
    arguments: tuple[Argument, ...] | None
    local_size: int
    private_size: int
    code_bytes: int


@dataclass(frozen=True)
class PlannedChip:
    """A chip that work is planned for.

    Attributes:
        name: of the chip ("ad102").
        title: for people.
        target: as its driver gives it to the compiler.
        memory_bytes: that programs can use on the usual board.
        read: checks a code object as the driver does and returns its kernels; raises BadCodeObject.
        instruction_bytes: size of each instruction; 0 where sizes differ.
    """

    name: str
    title: str
    target: TargetSpec
    memory_bytes: int
    read: Callable[[bytes], Sequence[ReadKernel]]
    instruction_bytes: int = 0


@dataclass
class Counts:
    """What a null device was asked to do.

    Attributes:
        kernels: launched.
        moved_bytes: least bytes of device memory that these launches read and write: their arrays,
            each once per launch. Only kernels of tensors count.
        flops: floating-point operations of these launches.
        copied_bytes: copied or filled on the device, and between devices.
        uploaded_bytes: from arrays of the host; what files contain is not read.
        programs: code objects loaded.
        code_bytes: of machine code in them.
        instructions: in them, each once; None where the instructions' sizes differ.
        allocated_peak: most bytes allocated at a time, in whole pages: tensors, memory that the
            tensors' pool keeps unused, programs.
    """

    kernels: int = 0
    moved_bytes: int = 0
    flops: int = 0
    copied_bytes: int = 0
    uploaded_bytes: int = 0
    programs: int = 0
    code_bytes: int = 0
    instructions: int | None = None
    allocated_peak: int = 0
