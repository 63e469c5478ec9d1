"""PyTorch's models on ugpu's devices. Needs the extra "torch".

    fast = ugpu.torch.compile(model, device=gpu)      # a backend of torch.compile
    y = fast(x)                                       # tensors of PyTorch in and out

    program = ugpu.torch.load(torch.export.export(model, (x,)), device=gpu)
    y = program(x)                                    # a ugpu.Tensor

    ugpu.torch.distributed.average_gradients(model.parameters())   # training over processes

Graphs of ATen operators, after PyTorch's own decompositions, are translated to tensor operations
(`operators`). Operators that are missing are named, all of them, before anything runs.
"""

from ugpu.compiler.torch import distributed as distributed
from ugpu.compiler.torch.backend import backend as backend
from ugpu.compiler.torch.backend import compile as compile
from ugpu.compiler.torch.exported import Program as Program
from ugpu.compiler.torch.exported import load as load

__all__ = ["Program", "backend", "compile", "distributed", "load"]
