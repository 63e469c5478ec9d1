"""Data parallel training over several processes or machines: `ugpu.torch.distributed`.

    torch.distributed.init_process_group("gloo")            # as PyTorch documents it
    distributed.broadcast_parameters(model.parameters())    # those of rank 0
    loss.backward()
    distributed.average_gradients(model.parameters())
    optimizer.step()

The processes are PyTorch's: who takes part, addresses, time limits and encryption are those of the
process group, "gloo" or another that moves tensors of the host. All parameters travel in one array.
Each process must make the same calls; on devices of different kinds, which round differently,
broadcast_parameters now and then makes the parameters equal again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ugpu.compiler.dtype import float32
from ugpu.compiler.gradients.reverse import tracking
from ugpu.compiler.nn.parameter import Parameter
from ugpu.compiler.optim.clipping import joined_gradients, spread_gradients
from ugpu.compiler.optim.placement import by_device
from ugpu.compiler.runtime.recording import current_recording
from ugpu.compiler.tensor import Tensor
from ugpu.compiler.torch.package import module
from ugpu.hcq.errors import BadArgument, HostError

Elements = npt.NDArray[np.float32]


def _engine(operation: str) -> Any:
    recording = current_recording()
    if recording is not None:
        raise BadArgument(
            f"@jit {recording.name}: {operation} talks to other processes, which a replay would "
            "not; call it outside the function"
        )
    engine = module("torch.distributed")
    if not engine.is_available() or not engine.is_initialized():
        raise BadArgument(f"{operation}: expected a process group; call "
                          'torch.distributed.init_process_group("gloo", ...) first')  # fmt: skip
    return engine


def _exchanged(operation: str, array: Elements, exchange: Callable[[Any], Any]) -> Elements:
    elements = module().from_numpy(np.ascontiguousarray(array).copy())
    try:
        exchange(elements)
    except RuntimeError as error:  # PyTorch's for a peer that is gone, and for its time limit
        raise HostError(
            f"{operation}: the process group failed; parameters and gradients are unchanged",
            said=str(error)[:300],
        ) from error
    result: Elements = elements.numpy()
    return result


def _rows(operation: str, parameters: Iterable[Any]) -> list[list[Parameter]]:
    rows = by_device(operation, parameters, False)
    wrong = [place for place, each in enumerate(rows[0]) if each.dtype is not float32]
    if not rows[0] or wrong:
        raise BadArgument(f"{operation}: expected float32 parameters, got "
                          f"{f'others at {wrong[:8]}' if wrong else 'none'}")  # fmt: skip
    return rows


def broadcast_parameters(parameters: Iterable[Any], src: int = 0, group: Any = None) -> None:
    """Replace the elements of parameters by those of process `src`.

    parameters: of the same shapes in the same order in all processes; sharded ones are replicated.
    group: a process group; None for the default one. BadArgument without a group, HostError if the
    group fails: then nothing has changed.
    """
    engine = _engine("broadcast_parameters")
    with tracking(False):
        rows = _rows("broadcast_parameters", parameters)
        own = np.concatenate([each.numpy().reshape(-1) for each in rows[0]])
        received = _exchanged(
            "broadcast_parameters", own, lambda t: engine.broadcast(t, src, group=group)
        )
        for row in rows:
            start = 0
            for each in row:
                part = received[start : start + each.numel()].reshape(each.shape)
                each.assign(Tensor(part, device=each.device))
                start += each.numel()
            row[0].realize(*row[1:])


def average_gradients(parameters: Iterable[Any], group: Any = None) -> None:
    """Replace each gradient by its mean over all processes, as DistributedDataParallel does.

    Call it between backward() and step(). parameters: those with a gradient must be the same ones,
    of the same shapes, in all processes; sharded ones are replicated. group: a process group; None
    for the default one. BadArgument without a group or gradients, HostError if the group fails:
    then the gradients are those of this process still.
    """
    engine = _engine("average_gradients")
    with tracking(False):
        rows = _rows("average_gradients", parameters)
        used, flat = joined_gradients(rows[0])
        total = _exchanged(
            "average_gradients", flat.numpy(), lambda t: engine.all_reduce(t, group=group)
        )
        mean = total / np.float32(engine.get_world_size(group))
        spread_gradients(used, Tensor(mean, device=flat.device))
        for row in rows[1:]:
            used, flat = joined_gradients(row)
            spread_gradients(used, Tensor(mean, device=flat.device))
