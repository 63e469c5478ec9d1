"""Tensor: lazy arrays on a device.

Operations build a graph and compute nothing; `realize`, `numpy` and `item` run the necessary
kernels, fused into few (compiler.schedule.grouping). Tensors are immutable. For type rules see
compiler.dtype.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import DType, float32
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.forms import Makes
from ugpu.compiler.graph.movement import part_of_stored
from ugpu.compiler.graph.origin import here
from ugpu.compiler.graph.tracking import History, mode
from ugpu.compiler.methods.core import Scalar, integer_of, number_of, shape_of
from ugpu.compiler.methods.derived.instead import missing
from ugpu.compiler.methods.ofclass import whole
from ugpu.compiler.plan.plan import MemoryPlan, memory_plan
from ugpu.compiler.runtime.kernels.tuners import active
from ugpu.compiler.runtime.lent import lend
from ugpu.compiler.runtime.recording import current_recording
from ugpu.compiler.runtime.runtime import device_of, runtime_of
from ugpu.compiler.runtime.several.between import copy_between
from ugpu.compiler.runtime.sharing import adopted
from ugpu.compiler.runtime.shown import facts
from ugpu.compiler.runtime.upload import array_of, copied, host_array, upload
from ugpu.compiler.search.forms import preferred
from ugpu.compiler.values import Values
from ugpu.hcq.device.device import Device, core_of, owner_of
from ugpu.hcq.errors import BadArgument, NotShared
from ugpu.hcq.state.text import table
from ugpu.hcq.work.buffer import Buffer


@whole
class Tensor(Values):
    """An array of `dtype` and `shape` on `device`.

    Args:
        data: a Python number, nested lists of them, or an array, of NumPy or of another library
            (`__array__`, DLPack; bfloat16 too), copied at once; float64 is stored as
            float32, unless `dtype` is float64.
        dtype: the type to store it with; numbers must fit it.
        device: a Device, a name to open (shared, closed at exit), or None for the default.

    BadArgument for data that is not an array, has an unsupported type or does not fit, or lists of
    unequal length.
    """

    __slots__ = ()
    __array_priority__ = 100.0  # so that `array + tensor` calls Tensor

    def __init__(
        self,
        data: Any,  # checked below
        *,
        device: Device | str | None = None,
        dtype: DType | str | None = None,
    ) -> None:
        self.device = device_of(device)
        wanted = None if dtype is None else dtypes.as_dtype(dtype)
        if type(data) is np.ndarray:  # by far the most frequent case
            self.node = upload(self.device, data, wanted)
        elif isinstance(data, Tensor):
            self.node = graph.cast(data.to(self.device).node, wanted or data.dtype)
        elif isinstance(data, bool | int | float):
            kind = wanted or dtypes.of_scalar(data)
            number = dtypes.rounded(data, kind) if kind.is_float else data
            self.node = self._constant("Tensor", number, kind, ())
        else:
            array, own = array_of(data, wanted)
            self.node = upload(self.device, array, wanted or own)
        if self.node.origin is None:
            self.node.origin = here()

    @classmethod
    def from_buffer(
        cls, buffer: Buffer, shape: int | Sequence[int], dtype: DType | str = float32
    ) -> Self:
        """Create a tensor from the elements at the start of a buffer, without a copy.

        The tensor keeps a reference to the buffer and never writes to it: assignments create a
        copy. Kernels read the elements when they run; the program may write new ones in between.
        The buffer may be longer than needed; its address must be a multiple of 256 bytes. Raises
        BadArgument if this is not possible; using the tensor after the buffer was closed raises
        Closed.
        """
        made = object.__new__(cls)
        made.node = lend(buffer, shape_of("from_buffer", [shape]), dtype)
        made.device = owner_of(buffer)
        made.node.origin = here()
        return made

    def _with_complex(self, name: tuple[object, ...], other: Any) -> Any:
        module = importlib.import_module("ugpu.compiler.complex.tensor")  # made of tensors itself
        return module.combined(self, name, other)

    # ---- creation ------------------------------------------------------------------------------

    @classmethod
    def full(
        cls,
        shape: int | Sequence[int],
        value: Scalar,
        *,
        device: Device | str | None = None,
        dtype: DType | str | None = None,
    ) -> Self:
        """Return a tensor with one value in all elements; memory is allocated only when needed."""
        number = cls(value, device=device, dtype=dtype)
        return number.expand(shape_of("full", [shape]))

    @classmethod
    def zeros(
        cls, *shape: Any, device: Device | str | None = None, dtype: Any = dtypes.float32
    ) -> Self:
        """Return a tensor of zeros; memory is allocated only when needed."""
        return cls.full(shape_of("zeros", shape), 0, device=device, dtype=dtype)

    @classmethod
    def ones(
        cls, *shape: Any, device: Device | str | None = None, dtype: Any = dtypes.float32
    ) -> Self:
        """Return a tensor of ones; memory is allocated only when needed."""
        return cls.full(shape_of("ones", shape), 1, device=device, dtype=dtype)

    @classmethod
    def arange(
        cls,
        start: int | float,
        stop: int | float | None = None,
        step: int | float = 1,
        *,
        device: Device | str | None = None,
        dtype: DType | str | None = None,
    ) -> Self:
        """Return start, start + step ... below stop; arange(n) counts from 0. Ints give int64.
        Raises BadArgument if an element is out of range for the type."""
        first, end = (0, start) if stop is None else (start, stop)
        first, end, step = (int(n) if isinstance(n, bool) else n for n in (first, end, step))
        first = number_of("arange", "start", first)
        end, step = number_of("arange", "stop", end), number_of("arange", "step", step)
        if not all(math.isfinite(number) for number in (first, end, step)):
            raise BadArgument(f"arange: expected finite numbers, got {first}, {end}, {step}")
        if step == 0:
            raise BadArgument("arange: step must not be 0")
        whole = all(isinstance(number, int) for number in (first, end, step))
        count = max(
            0, int(np.ceil((end - first) / step)) if not whole else -int((first - end) // step)
        )
        kind = (
            dtypes.as_dtype(dtype)
            if dtype is not None
            else dtypes.int64
            if whole
            else dtypes.float32
        )
        made = object.__new__(cls)
        made.device = device_of(device)
        made.node = graph.iota(count)
        for number in (first, first + (count - 1) * step) if count else ():
            made._constant("arange", int(number) if kind.is_integer else number, kind, ())
        if not whole:
            made = made.cast(dtypes.float32)
        return (made * step + first).cast(kind)

    @classmethod
    def eye(cls, rows: int, columns: int | None = None, diagonal: int = 0, **options: Any) -> Self:
        """Return a matrix with ones on a diagonal, by default the main one, and zeros elsewhere.
        diagonal: its distance above the main one. Options: device, dtype (float32)."""
        kind = options.pop("dtype", dtypes.float32)
        rows, above = integer_of("eye", "rows", rows), integer_of("eye", "diagonal", diagonal)
        if columns is not None:
            columns = integer_of("eye", "columns", columns)
        above = max(-rows, min(above, rows if columns is None else columns))  # else all are zero
        down = cls.arange(rows, **options).unsqueeze(1) + above
        across = cls.arange(rows if columns is None else columns, **options)
        return down._compare("eq", across).cast(kind)

    @classmethod
    def linspace(
        cls, start: float, end: float, steps: int, endpoint: bool = True, **options: Any
    ) -> Self:
        """Return `steps` numbers at equal distances from start to end, which is the last of them
        unless `endpoint` is False. Options: device, dtype (float32)."""
        return cls._spaced("linspace", start, end, steps, options, None, endpoint)

    @classmethod
    def logspace(
        cls, start: float, end: float, steps: int, base: float = 10.0, **options: Any
    ) -> Self:
        """Return base ** each number of `linspace`. Options: device, dtype (float32)."""
        return cls._spaced("logspace", start, end, steps, options, base)

    @classmethod
    def _spaced(
        cls, name: str, start: float, end: float, steps: int, options: dict[str, Any],
        base: float | None, endpoint: bool = True,
    ) -> Self:  # fmt: skip
        """The numbers are computed in float64 on the host, and rounded once."""
        first, last = number_of(name, "start", start), number_of(name, "end", end)
        if integer_of(name, "steps", steps) < 0:
            raise BadArgument(f"{name}: expected steps >= 0, got {steps}")
        numbers = np.linspace(float(first), float(last), steps, endpoint)
        if base is not None:
            numbers = float(number_of(name, "base", base)) ** numbers
        kind = dtypes.as_dtype(options.pop("dtype", dtypes.float32))
        exact = numbers if kind.is_float else np.trunc(numbers)
        return cls(exact, dtype=kind, **options)

    @staticmethod
    def meshgrid(*tensors: Tensor, indexing: str = "ij") -> tuple[Tensor, ...]:
        """Return for each of several tensors of one axis its elements over the grid of all: axes in
        their order ("ij"), or with the first two exchanged ("xy")."""
        listed = (
            tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
        )
        given = _tensors("meshgrid", list(listed))
        if indexing not in ("ij", "xy"):
            raise BadArgument(f"meshgrid: indexing must be 'ij' or 'xy', got {indexing!r}")
        if any(each.ndim > 1 for each in given):
            raise BadArgument("meshgrid: expected tensors of one axis")
        sizes = [each.numel() for each in given]
        order = list(range(len(sizes)))
        if indexing == "xy" and len(order) > 1:
            order[:2] = [1, 0]
        grids = []
        for place, each in enumerate(given):
            shape = [1] * len(sizes)
            shape[order[place]] = sizes[place]
            whole = tuple(sizes[axis] for axis in order)
            grids.append(each.reshape(tuple(shape)).expand(whole))
        return tuple(grids)

    @staticmethod
    def cat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
        """Join tensors along an axis; the other sizes must be equal. On a tensor, that one is the
        first: `x.cat(y)`, `x.cat([y, z], axis)`."""
        tensors = _tensors("cat", tensors)
        if any(tensor.ndim != 1 for tensor in tensors):  # [0] joins with any shape, as in PyTorch
            tensors = [tensor for tensor in tensors if tensor.shape != (0,)]
        first = tensors[0]
        place = first._axis("cat", axis)
        kind = first.dtype
        for other in tensors[1:]:
            first._lift("cat", other)
            kind = dtypes.promote(kind, other.dtype)
        shapes = [list(tensor.shape) for tensor in tensors]
        rest = {(*shape[:place], *shape[place + 1 :]) for shape in shapes}
        if len(rest) > 1 or len({len(shape) for shape in shapes}) > 1:
            listed = " and ".join(tensor._shown for tensor in tensors)
            raise BadArgument(f"cat: shapes {listed} must be equal except in axis {axis}")
        return first._new(graph.cat([graph.cast(t.node, kind) for t in tensors], place))

    @staticmethod
    def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
        """Join tensors along a new axis; the shapes must be equal. On a tensor, that one is the
        first: `x.stack(y)`, `x.stack([y, z], axis)`."""
        if len({tensor.shape for tensor in _tensors("stack", tensors)}) > 1:
            listed = " and ".join(tensor._shown for tensor in tensors)
            raise BadArgument(f"stack: shapes must be equal, got {listed}")
        return Tensor.cat([tensor.unsqueeze(axis) for tensor in tensors], axis)

    # ---- results -------------------------------------------------------------------------------

    def memory_plan(self, *others: Tensor) -> MemoryPlan:
        """Return the memory and kernels that realizing this tensor (and others of the same device)
        would need."""
        for other in others:
            self._lift("memory_plan", other)
        for other in others:
            if not isinstance(other, Tensor):
                raise BadArgument(f"memory_plan: expected Tensors, got {other!r}")
        roots = [self.node, *(other.node for other in others)]
        return memory_plan(roots, self.device.target)

    def to(
        self,
        target: Device | DType | Tensor | str | None = None,
        dtype: Any = None,
        *,
        device: Device | str | None = None,
        non_blocking: bool = False,
        copy: bool = False,
    ) -> Self:
        """Return the tensor on another device, or with another type, or both; a tensor as target
        names its own. The copy goes through the host, unless that device reaches this one's memory
        (compiler.runtime.several.between). non_blocking, copy: PyTorch's, of no effect: operations
        never wait, and the result is always another tensor."""
        if isinstance(target, Tensor):
            dtype = target.dtype if dtype is None else dtype
            target = target.device
        elif target is not None and not isinstance(target, Device) and _is_type(target):
            if dtype is not None:
                raise BadArgument(f"to: expected one type, got {target!r} and {dtype!r}")
            target, dtype = None, target
        if target is not None and device is not None:
            raise BadArgument(f"to: expected one device, got {target!r} and {device!r}")
        wanted = target if device is None else device
        assert not isinstance(wanted, Tensor | DType)
        moved = self._same() if wanted is None else self._moved(device_of(wanted))
        return moved if dtype is None else moved.cast(dtype)

    def _moved(self, device: Device) -> Self:
        if device is self.device:
            return self._same()
        if type(self) is self._kind:
            if part_of_stored(self.node) is None:
                self.realize()
            made = object.__new__(self._kind)
            made.node, made.device = copy_between(self.node, self.device, device), device
            made.node.origin = here()
        else:  # of a nested function
            made = type(self)(self.numpy(), device=device, dtype=self.dtype)
        if self.node.tracked and mode.on:
            origin = self.device
            history = History("to", (self.node,), (origin, lambda g: g.to(origin)))
            made.node.tracked, made.node.history = True, history
        return made

    def cpu(self) -> Self:
        """Return the tensor on the device "cpu"."""
        return self._same() if self.device.name == "cpu" else self.to("cpu")

    def shard(self, devices: Sequence[Device | str], axis: int | None = None) -> Any:
        """Return this tensor on several devices: split along an axis, or, for None, replicated. The
        last parts are shorter if the axis does not divide. The result, a
        `compiler.sharding.sharded.Sharded`, has the methods of a Tensor; gradients flow back."""
        methods = importlib.import_module("ugpu.compiler.sharding.methods")  # above this floor
        return methods.shard(self, devices, axis)

    def _from_array(self, array: Any) -> Tensor:
        kind = "float64" if self.dtype is dtypes.float64 else None
        elements = array_of(array, None)[0] if kind else array
        if kind and elements.dtype == np.float64:  # else it would lose precision
            return Tensor(elements, device=self.device, dtype=kind)
        return Tensor(array, device=self.device)

    def _picked(self, mask: Tensor) -> NDArray[Any]:
        return mask.numpy()

    def _whole(self, operation: str, tensor: Tensor) -> int:
        return int(tensor)

    def _dropped(self, probability: float) -> Self:
        return self.dropout(probability, training=True)

    def _kept(self, name: str, make: Callable[[], np.ndarray[Any, Any]]) -> Tensor | None:
        kept = runtime_of(self.device).constants
        if name not in kept:
            recording = current_recording()  # its first call, without a pool, runs as usual
            captured = recording is not None and recording.stages is not None
            if captured or core_of(self.device).capturing is not None:
                return None
            array = make()
            kept[name] = copied(self.device, array, dtypes.as_dtype(array.dtype))
        return self._new(kept[name])

    @property
    def _gives_numbers(self) -> bool:
        return not self.device.closed and current_recording() is None and active() is None

    def _preferred(self, what: str, forms: Mapping[str, Makes]) -> str | None:
        if current_recording() is not None or core_of(self.device).capturing is not None:
            return None
        return preferred(self.device, what, forms)

    def __copy__(self) -> Self:
        return self._same()

    def __deepcopy__(self, memo: object) -> Self:
        return self._same()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the elements and the names of type and device; the device is opened by name."""
        return _restored, (type(self), self.numpy(), self.dtype.name, self.device.name)

    @classmethod
    def from_dlpack(
        cls, data: Any, *, device: Device | str | None = None, copy: bool | None = None
    ) -> Self:
        """Return an array of another library, which exports it by DLPack, as a tensor.

        Memory is shared where kernels of the device can read it: on `cpu`, of elements in row-major
        order at a multiple of 256 bytes; then later writes of the other library show. Otherwise,
        and for copy=True, the elements are copied. float64 stays float64. NotShared (a
        BufferError) if copy=False and they have to be copied, or for memory that is not the host's.
        """
        if isinstance(data, Tensor):
            target = data.device if device is None else device_of(device)
            if copy is False and target is not data.device:
                raise NotShared(
                    f"from_dlpack: a tensor on {data.device.name} has to be copied to "
                    f"{target.name}, expected copy=None or True"
                )
            return cls(data, device=target)
        target, array = device_of(device), host_array(data)
        node = None if array is None else adopted(target, array, copy)
        if node is None:
            if copy is False:
                raise NotShared(
                    "from_dlpack: elements of a type that NumPy lacks have to be copied, expected "
                    "copy=None or True"
                )
            if array is None:
                return cls(data, device=target)
            return cls(array, device=target, dtype=dtypes.as_dtype(array.dtype))
        made = object.__new__(cls)
        made.node, made.device, node.origin = node, target, here()
        return made

    def to_device(self, device: Device | str, /, *, stream: Any = None) -> Self:
        """Return the tensor on another device, see `to`."""
        if stream is not None:
            raise BadArgument(f"to_device: streams are not supported, got {stream!r}")
        return self.to(device_of(device))

    if not TYPE_CHECKING:  # else type checkers would accept every name

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError, with what to write instead of a method of PyTorch or NumPy."""
            raise AttributeError(missing(name, hasattr(type(self), name.rstrip("_"))))

    def __repr__(self) -> str:
        """Show the elements, once they are computed, else the expression. Reading them waits for
        the device, but starts nothing."""
        state, text = facts(self.node)
        after = "" if state == "stored" else f", {state}"
        joint = "\n" if "\n" in text else " "
        title = f"Tensor {self.dtype.name}{list(self.shape)} on {self.device.name}"
        return f"<{title}{after}:{joint}{text}>"

    def _repr_html_(self) -> str:
        state, text = facts(self.node)
        title = f"Tensor {self.dtype.name}{list(self.shape)}"
        return table(title, {"device": self.device.name, "state": state}, text)


def _is_type(given: Any) -> bool:
    """Return whether an argument of `to` is a type; the name of a device is not a type."""
    if isinstance(given, str):
        return given in {*(dtype.name for dtype in dtypes.ALL), "complex64"}
    return isinstance(given, DType | type | np.dtype)


def _tensors(operation: str, given: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return a sequence of tensors, checked not to be empty."""
    if not isinstance(given, list | tuple) or not all(isinstance(each, Tensor) for each in given):
        raise BadArgument(f"{operation}: expected a sequence of Tensors, got {given!r}")
    if not given:
        raise BadArgument(f"{operation}: expected at least one Tensor, got none")
    return given


def _restored(kind: type[Tensor], array: NDArray[Any], dtype: str, device: str) -> Tensor:
    """Rebuild a pickled tensor."""
    return kind(array, dtype=dtype, device=device)
