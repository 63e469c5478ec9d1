"""Programs of torch.export as functions of tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ugpu.compiler.runtime.runtime import device_of
from ugpu.compiler.tensor import Tensor
from ugpu.compiler.torch.graph import Graph
from ugpu.compiler.torch.package import from_torch, module, tensor_of
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, BadFile, NotSupported

KEPT = ("linear", "scaled_dot_product_attention")  # composed operators that are not taken apart


def decompositions() -> Any:
    """Return PyTorch's table of decompositions to core operators, without KEPT."""
    torch = module()
    table = dict(module("torch.export").default_decompositions())
    for name in KEPT:
        table.pop(getattr(torch.ops.aten, name).default, None)
    return table


class Program:
    """An exported program on a device. Calling it with the arguments of the model, tensors of ugpu,
    PyTorch or NumPy, gives tensors of ugpu in the form of the model's result; nothing is computed
    before one is read. Weights are copied to the device once; buffers that the model changes are
    changed there. Sizes that the export left open are recorded again for each set of sizes."""

    def __init__(self, program: Any, device: Device | str | None = None) -> None:
        """program: a torch.export.ExportedProgram. Raises NotSupported with the names of all
        operators that are missing."""
        self.device = device_of(device)
        core = program.run_decompositions(decompositions())
        self._signature = core.graph_signature
        self._graph = Graph(core.graph_module, self.device)
        self._form = core.call_spec
        self._weights: dict[str, Tensor] = {}
        self._inputs = [self._source(core, spec) for spec in self._signature.input_specs]
        self._check_outputs()

    @property
    def operators(self) -> Mapping[str, int]:
        """Return how often each operator occurs."""
        return self._graph.operators

    def _source(self, core: Any, spec: Any) -> Tensor | None:
        """Return the weight of a placeholder; None for an argument of the call."""
        kind = spec.kind.name
        if kind == "USER_INPUT":
            return None
        if kind in ("PARAMETER", "BUFFER"):
            held = core.state_dict if spec.persistent is not False else core.constants
            value = held[spec.target]
        elif kind == "CONSTANT_TENSOR":
            value = core.constants[spec.target]
        else:
            raise NotSupported(f"torch.export: an input of kind {kind} ({spec.target})")
        weight = from_torch(value, self.device).realize()
        self._weights[spec.target] = weight
        return weight

    def _check_outputs(self) -> None:
        for spec in self._signature.output_specs:
            if spec.kind.name not in ("USER_OUTPUT", "BUFFER_MUTATION"):
                raise NotSupported(
                    f"torch.export: a result of kind {spec.kind.name} ({spec.target}); models that "
                    "change their arguments or return gradients are not supported"
                )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model. BadArgument if the arguments have not the form of the exported ones."""
        pytree = module("torch.utils._pytree")
        leaves, form = pytree.tree_flatten((args, kwargs))
        if form != self._form.in_spec:
            raise BadArgument(
                f"the model takes arguments of the form {self._form.in_spec}, got {form}"
            )
        given = iter([
            each if each is None or isinstance(each, bool | int | float | str)
            else tensor_of(each, self.device, "an argument") for each in leaves
        ])  # fmt: skip
        values = [next(given) if each is None else each for each in self._inputs]
        results = self._graph(values)
        outputs = []
        for spec, result in zip(self._signature.output_specs, results, strict=True):
            if spec.kind.name == "BUFFER_MUTATION":
                self._weights[spec.target].assign(result)
            else:
                outputs.append(result)
        return pytree.tree_unflatten(outputs, self._form.out_spec)

    def __repr__(self) -> str:
        return f"<torch.Program of {sum(self.operators.values())} nodes on {self.device.name}>"


def load(program: Any, *, device: Device | str | None = None) -> Program:
    """Load an exported program: a torch.export.ExportedProgram, or the path of a file of
    `torch.export.save`, which must come from a source that is trusted as a program is.

    Raises BadFile for an invalid file, NotSupported with a list of the operators that are missing,
    MissingDependency without PyTorch.
    """
    export = module("torch.export")
    if isinstance(program, str | os.PathLike):
        path = Path(program)
        try:
            program = export.load(path)
        except OSError:
            raise
        except Exception as error:  # of no common class
            raise BadFile(f"{path.name} is not an exported program: {error}", file=str(path)
                          ) from error  # fmt: skip
    if not isinstance(program, export.ExportedProgram):
        raise BadArgument(
            f"load: expected an ExportedProgram or a path, got {type(program).__name__}; "
            "see torch.export.export"
        )
    return Program(program, device)
