"""Parts of real models on `cpu`, beside PyTorch and onnxruntime, where installed.

Each work runs in a recorded function (`jit`), as a model does, in turns with its peers, with as
many threads each (bench_compiler_peers). On shared machines compare by `cpu_ratio`, on one
processor (`taskset -c 0`). Each result is compared with PyTorch's before it is timed. onnxruntime
has the weights of convolutions before its first run, and lays them out then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np

from lab.bench.compiler.bench_compiler_peers import Work, _peer, _versus
from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.compiler.codegen.process.behind import behind
from ugpu.compiler.numeric import fft
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.hcq.device.device import Device

Array = np.ndarray[Any, np.dtype[Any]]
Build = Callable[..., Any]  # of our tensors, or of PyTorch's
RECORDED = 3  # calls after which a function is recorded
TOLERANCE = 2.0**-12  # of the largest element: by how much results may differ


class _Works:
    """The device, the peers, and inputs."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.torch, self.onnx = _peer("torch"), _peer("onnx")
        self.runtime = _peer("onnxruntime")
        self.threads = len(os.sched_getaffinity(0))
        if self.torch is not None:
            self.torch.set_num_threads(self.threads)
        self.rng = np.random.default_rng(0)

    def floats(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape, dtype=np.float32)

    def bytes_(self, *shape: int) -> Array:
        return self.rng.integers(-128, 128, shape).astype(np.int8)

    def work(
        self, name: str, arrays: Sequence[Array], ours: Build, theirs: Build | None,
        nodes: Sequence[Any] = (), numpy: Build | None = None,
        others: Mapping[str, Build] | None = None, exact: Build | None = None,
    ) -> list[Any]:  # fmt: skip
        """One row for each peer. nodes: the same in ONNX, of inputs a, b, c .. to "out". others:
        further peers that take arrays, by name. exact: the right result, where PyTorch's is not."""
        tensors = [Tensor(array, device=self.device).realize() for array in arrays]
        recorded = jit(lambda *given: ours(*given))

        def mine() -> None:
            recorded(*tensors).realize()
            self.device.synchronize()

        for _ in range(RECORDED):
            mine()
        behind().wait()  # times are those of the second versions
        peers: dict[str, Work] = {}
        if self.torch is not None and theirs is not None:
            given = [self.torch.from_numpy(array) for array in arrays]
            peers["PyTorch"] = partial(theirs, *given)
            wanted = theirs(*given).double().numpy() if exact is None else exact(*arrays)
            found = ours(*tensors).numpy().astype(np.float64)
            worst = float(np.abs(found - wanted).max() / np.abs(wanted).max())
            assert worst < TOLERANCE, (name, worst)
        if numpy is not None:
            peers["NumPy"] = partial(numpy, *arrays)
        peers |= {peer: partial(build, *arrays) for peer, build in (others or {}).items()}
        if nodes and self.runtime is not None:
            peers["onnxruntime"] = self.session(arrays, nodes)
        return _versus(name, mine, peers)

    def session(self, arrays: Sequence[Array], nodes: Sequence[Any]) -> Work:
        """A run of onnxruntime, whose first array is the input and the others are weights."""
        helper, kinds = self.onnx.helper, self.onnx.TensorProto
        names = "abcdefgh"
        first = helper.make_tensor_value_info("a", kinds.FLOAT, arrays[0].shape)
        last = helper.make_tensor_value_info("out", kinds.FLOAT, None)
        weights = [
            self.onnx.numpy_helper.from_array(array, name)
            for array, name in zip(arrays[1:], names[1:], strict=False)
        ]
        graph = helper.make_graph(list(nodes), "work", [first], [last], weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 8
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads = self.threads
        session = self.runtime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return partial(session.run, None, {"a": arrays[0]})

    def one_hots(self) -> list[Any]:
        """Comparisons with all places, beside the lookup and the count that a peer has for it."""
        places, table = self.rng.integers(0, 5000, 20_000), self.floats(5000, 64)
        rows, bins = self.floats(20_000, 64), self.rng.integers(0, 256, 1_000_000)

        def hot(x: Tensor, count: int) -> Tensor:
            places: Tensor = x.unsqueeze(1) == Tensor.arange(count, device=self.device)
            return places

        results = self.work(
            "one-hot of 20,000 in 5000 @ 5000 x 64", (places, table),
            lambda x, w: hot(x, 5000).cast("float32") @ w, lambda x, w: w[x],
            numpy=lambda x, w: w[x],
        )  # fmt: skip
        results += self.work(
            "(arange(1000) == 20,000 places) @ 1000 x 64", (places % 1000, table[:1000]),
            lambda x, w: hot(x, 1000).cast("float32") @ w, lambda x, w: w[x],
            numpy=lambda x, w: w[x],
        )  # fmt: skip
        results += self.work(
            "histogram of a million in 256 by one-hot", (bins,), lambda x: hot(x, 256).sum(0),
            lambda x: x.bincount(minlength=256), numpy=partial(np.bincount, minlength=256),
        )  # fmt: skip
        results += self.work(
            "one-hot.T of 20,000 in 5000 @ 20,000 x 64", (places, rows),
            lambda x, g: hot(x, 5000).cast("float32").permute(1, 0) @ g,
            lambda x, g: g.new_zeros((5000, 64)).index_add(0, x, g),
        )  # fmt: skip
        return results

    def thin_products(self) -> list[Any]:
        results = []
        for rows, depth, columns in (
            (1, 512, 512), (1, 4096, 4096), (2, 1024, 1024), (4, 1024, 1024), (7, 1023, 513),
            (97, 4096, 211), (3, 1_000_003, 3),
        ):  # fmt: skip
            arrays = self.floats(rows, depth), self.floats(depth, columns)
            name = f"{rows} x {depth} @ {depth} x {columns}"
            results += self.work(name, arrays, lambda x, w: x @ w, lambda x, w: x @ w)
        arrays = self.floats(20_000, 784), self.floats(784, 1)
        results += self.work(
            "X.T @ (X @ v), 20000 x 784", arrays,
            lambda x, v: x.permute(1, 0) @ (x @ v), lambda x, v: x.T @ (x @ v),
        )  # fmt: skip
        return results

    def convolutions(self) -> list[Any]:
        """Ends of ResNet-18 at 64^2, and depthwise ones."""
        results = []
        cases = [  # channels, out channels, size, window, stride, groups
            (512, 512, 2, 3, 1, 1), (256, 512, 4, 3, 2, 1), (96, 96, 56, 7, 1, 96),
            (96, 96, 56, 3, 1, 96), (144, 144, 56, 3, 2, 144), (960, 960, 7, 3, 1, 960),
        ]  # fmt: skip
        for channels, out, size, window, stride, groups in cases:
            arrays = (
                self.floats(1, channels, size, size),
                self.floats(out, channels // groups, window, window),
            )
            options = {"stride": stride, "padding": window // 2, "groups": groups}
            kind = "depthwise" if groups > 1 else "conv2d"
            name = f"{kind} {window} x {window} / {stride}, {channels} to {out} of {size}^2"
            theirs = None
            if self.torch is not None:
                theirs = partial(self.torch.nn.functional.conv2d, **options)
            nodes = []
            if self.onnx is not None:
                nodes.append(self.convolution("a", "b", "out", window, stride, groups))
            ours = partial(_convolved, options)
            results += self.work(name, arrays, ours, theirs, nodes)
        return results

    def convolution(
        self, image: str, weight: str, out: str, window: int, stride: int = 1, groups: int = 1
    ) -> Any:
        return self.onnx.helper.make_node(
            "Conv", [image, weight], [out], group=groups, strides=[stride] * 2,
            pads=[window // 2] * 4,
        )  # fmt: skip

    def blocks(self) -> list[Any]:
        """Of MobileNetV2 (an inverted residual), and of a UNet (a skip by 1 x 1)."""
        functional = None if self.torch is None else self.torch.nn.functional
        image = self.floats(1, 24, 56, 56)
        weights = self.floats(144, 24, 1, 1), self.floats(144, 1, 3, 3), self.floats(24, 144, 1, 1)

        def inverted(x: Any, wide: Any, apart: Any, narrow: Any) -> Any:
            hidden = x.conv2d(wide).relu().conv2d(apart, padding=1, groups=144).relu()
            return x + hidden.conv2d(narrow)

        def inverted_there(x: Any, wide: Any, apart: Any, narrow: Any) -> Any:
            assert functional is not None
            hidden = functional.relu(functional.conv2d(x, wide))
            hidden = functional.relu(functional.conv2d(hidden, apart, padding=1, groups=144))
            return x + functional.conv2d(hidden, narrow)

        nodes = []
        if self.onnx is not None:
            make = self.onnx.helper.make_node
            nodes = [
                self.convolution("a", "b", "h1", 1), make("Relu", ["h1"], ["h2"]),
                self.convolution("h2", "c", "h3", 3, 1, 144), make("Relu", ["h3"], ["h4"]),
                self.convolution("h4", "d", "h5", 1), make("Add", ["a", "h5"], ["out"]),
            ]  # fmt: skip
        there = None if functional is None else inverted_there
        results = self.work(
            "MobileNetV2 block, 24 to 144 of 56^2", (image, *weights), inverted, there, nodes
        )
        image = self.floats(1, 64, 64, 64)
        filters = [self.floats(64, 64, size, size) / 24 for size in (3, 1, 3)]

        def skipped(x: Any, first: Any, skip: Any, second: Any) -> Any:
            hidden = (x.conv2d(first, padding=1) + x.conv2d(skip)).silu()
            return hidden.conv2d(second, padding=1)

        def skipped_there(x: Any, first: Any, skip: Any, second: Any) -> Any:
            assert functional is not None
            hidden = functional.conv2d(x, first, padding=1) + functional.conv2d(x, skip)
            return functional.conv2d(functional.silu(hidden), second, padding=1)

        there = None if functional is None else skipped_there
        return results + self.work("UNet block, 64 of 64^2", (image, *filters), skipped, there)

    def joined(self) -> list[Any]:
        """Sums of two products that a pad or a cat reads."""
        arrays = [self.floats(512, 512) for _ in range(5)]
        torch = self.torch

        def padded_there(a: Any, b: Any, c: Any, d: Any, _: Any) -> Any:
            return torch.nn.functional.pad(a @ b + c @ d, (1, 1, 1, 1))

        both: list[tuple[str, Build, Build]] = [
            ("(a @ b + c @ d).pad, 512^2",
             lambda a, b, c, d, _: (a @ b + c @ d).pad(((1, 1), (1, 1))), padded_there),
            ("cat([a @ b + c @ d, e]), 512^2",
             lambda a, b, c, d, e: Tensor.cat([a @ b + c @ d, e]),
             lambda a, b, c, d, e: torch.cat([a @ b + c @ d, e])),
        ]  # fmt: skip
        results = []
        for name, ours, theirs in both:
            results += self.work(name, arrays, ours, None if torch is None else theirs)
        return results

    def elements(self) -> list[Any]:
        """Elementary functions, softmax of long rows, attention of one row, orders of memory."""
        array = self.floats(4_000_000)
        results = []
        for name in (
            "tanh", "sin", "exp", "exp2", "expm1", "sinh", "sigmoid", "erf", "erfinv", "log",
            "log2", "log1p",
        ):  # fmt: skip
            called = methodcaller(name)
            given = array
            if name.startswith("log"):
                given = np.abs(array) + np.float32(0.1)
            elif name == "erfinv":
                given = np.tanh(array)
            results += self.work(
                f"{name}, 4 million f32", [given], called, called, numpy=getattr(np, name, None)
            )
        for name in ("softplus", "gelu"):
            theirs = self.torch and getattr(self.torch.nn.functional, name)
            results += self.work(f"{name}, 4 million f32", [array], methodcaller(name), theirs)
        above = np.abs(array) + np.float32(0.1)
        results += self.work("pow, 4 million f32", [above, array], pow, pow, numpy=np.power)
        rows = self.floats(3, 1_000_003)
        results += self.work("softmax 3 x 1000003", [rows], _softmax, _softmax)
        heads = [self.floats(1, 32, rows, 64) for rows in (1, 1024, 1024)]
        attend = None
        if self.torch is not None:
            attend = self.torch.nn.functional.scaled_dot_product_attention
        results += self.work(
            "attention 32 heads, 1 row of 1024 keys", heads,
            lambda q, k, v: ((q @ k.transpose(-1, -2)) * 0.125).softmax() @ v, attend,
        )  # fmt: skip
        square = self.floats(4096, 4096)
        results += self.work("transpose 4096^2 f32", [square], _turned, _turned)
        left, right = self.bytes_(512, 512), self.bytes_(512, 512)
        multiply = None if self.torch is None else self.torch._int_mm
        # without VNNI PyTorch's sums of two products end at the limits of int16
        return results + self.work(
            "matmul 512^3 int8 in int32", [left, right], _in_int32, multiply,
            exact=lambda x, y: x.astype(np.float64) @ y.astype(np.float64),
        )  # fmt: skip

    def totals(self) -> list[Any]:
        """Running totals, of many rows, across memory, and of one row."""
        results = []
        for shape, axis in (((4096, 4096), 1), ((4096, 4096), 0), ((1, 1 << 24), 1)):
            arrays = self.floats(*shape), np.array(axis)
            name = f"{shape[0]} x {shape[1]}, axis {axis}"
            node = []
            if self.onnx is not None:
                node.append(self.onnx.helper.make_node("CumSum", ["a", "b"], ["out"]))
            results += self.work(
                f"cumsum {name}", arrays, lambda x, _, axis=axis: x.cumsum(axis),
                lambda x, _, axis=axis: x.cumsum(axis), node,
                lambda x, _, axis=axis: np.cumsum(x, axis),
            )  # fmt: skip
        near_one = 1 + self.floats(1000, 1000) / 64
        results += self.work(
            "cumprod 1000^2", [near_one], lambda x: x.cumprod(1), lambda x: x.cumprod(1), (),
            lambda x: np.cumprod(x, 1),
        )  # fmt: skip
        for rows in (100, 1000):
            results += self.work(
                f"cummax {rows} x 1000", [self.floats(rows, 1000)], lambda x: x.cummax(1),
                lambda x: x.cummax(1).values, (), lambda x: np.maximum.accumulate(x, 1),
            )  # fmt: skip
        return results

    def small(self) -> list[Any]:
        """Small and symmetric products, places of maxima, neighbours on a torus."""
        results = []
        for name, left, right in (
            ("16^3", (16, 16), (16, 16)), ("65^3", (65, 65), (65, 65)),
            ("64 x 33x65x17", (64, 33, 65), (64, 65, 17)), ("1 x 512^2", (1, 512), (512, 512)),
            ("1 x 1024^2", (1, 1024), (1024, 1024)),
        ):  # fmt: skip
            arrays = self.floats(*left), self.floats(*right)
            results += self.work(
                f"product {name}", arrays, lambda x, y: x @ y, lambda x, y: x @ y,
                numpy=lambda x, y: x @ y,
            )  # fmt: skip
        results += self.work(
            "A.T @ A, 20000 x 256", [self.floats(20_000, 256)], lambda x: x.permute(1, 0) @ x,
            lambda x: x.T @ x, numpy=lambda x: x.T @ x,
        )  # fmt: skip
        for rows, depth, columns in ((512, 256, 256), (1000, 100, 100)):
            results += self.work(
                f"A.T @ B, {rows} x {depth} by {rows} x {columns}",
                [self.floats(rows, depth), self.floats(rows, columns)],
                lambda x, y: x.permute(1, 0) @ y, lambda x, y: x.T @ y,
                numpy=lambda x, y: x.T @ y,
            )  # fmt: skip
        for rows, columns in ((3, 1_000_003), (1000, 1000), (64, 32_000), (256, 1000)):
            results += self.work(
                f"argmax {rows} x {columns}", [self.floats(rows, columns)],
                lambda x: x.argmax(1), lambda x: x.argmax(1), numpy=partial(np.argmax, axis=1),
            )  # fmt: skip
        board = self.rng.integers(0, 2, (1024, 1024)).astype(np.uint8)
        there = None if self.torch is None else partial(_life, self.torch.roll)
        results += self.work(
            "Life, 1024^2 bytes, 5 steps", [board], partial(_life, Tensor.roll), there,
            numpy=partial(_life, np.roll),
        )  # fmt: skip
        arrays = self.floats(1, 64, 32, 32), self.floats(64, 32, 4, 4)
        there = None if self.torch is None else self.torch.nn.functional.conv_transpose2d
        for stride in (1, 2):
            results += self.work(
                f"conv_transpose2d 4 x 4 / {stride}, 64 to 32 of 32^2", arrays,
                partial(Tensor.conv_transpose2d, stride=stride),
                None if there is None else partial(there, stride=stride),
            )  # fmt: skip
        return results

    def transforms(self) -> list[Any]:
        """Fourier transforms; complex numbers are parts on a last axis of two."""
        torch, results = self.torch, []

        def there(x: Any, name: str) -> Any:
            given = torch.view_as_complex(x) if x.shape[-1] == 2 else x
            return torch.view_as_real(getattr(torch.fft, name)(given))

        def packed(x: Array, function: Build) -> Any:
            return function(x.view(np.complex64)[..., 0] if x.shape[-1] == 2 else x)

        scipy = None if _peer("scipy") is None else _peer("scipy.fft")
        for name, shape in (
            ("fft2", (512, 512, 2)), ("fft2", (1000, 1000, 2)), ("fft", (400, 400, 2)),
            ("rfft", (400, 400)), ("rfft", (1000, 1000)),
            ("fft", (8, 256, 2)), ("fft", (4, 512, 2)), ("fft", (64, 8192, 2)),
        ):  # fmt: skip
            others = {}
            if scipy is not None:
                function = partial(getattr(scipy, name), workers=self.threads)
                others["SciPy"] = partial(packed, function=function)
            results += self.work(
                f"{name} of {' x '.join(map(str, shape[:2]))}", [self.floats(*shape)],
                getattr(fft, name), None if torch is None else partial(there, name=name),
                numpy=partial(packed, function=getattr(np.fft, name)), others=others,
            )  # fmt: skip
        return results

    def orders(self) -> list[Any]:
        """Sorts (NumPy's is not stable, and of values alone), the first of rows, medians."""
        results = []
        for rows, columns in (
            (1000, 1000),
            (1, 1_000_000),
            (64, 32_000),
            (65_536, 32),
            (10_000, 100),
        ):
            array = self.floats(rows, columns)
            results += self.work(
                f"sort {rows} x {columns}", [array], lambda x: x.sort(1)[0],
                lambda x: x.sort(1).values, (), np.sort,
            )  # fmt: skip
            results += self.work(
                f"argsort {rows} x {columns}", [array], lambda x: x.argsort(1),
                lambda x: x.argsort(dim=1, stable=True), (), partial(np.argsort, kind="stable"),
            )  # fmt: skip
        for rows, columns, count in (
            (64, 32_000, 10), (1, 128_256, 50), (128, 1000, 5), (1000, 1000, 100),
        ):  # fmt: skip
            arrays = self.floats(rows, columns), np.array([count])
            node = []
            if self.onnx is not None:
                node.append(self.onnx.helper.make_node("TopK", ["a", "b"], ["out", "where"]))
            results += self.work(
                f"topk {count} of {rows} x {columns}", arrays,
                lambda x, _, count=count: x.topk(count, 1)[0],
                lambda x, _, count=count: x.topk(count, 1).values, node,
                lambda x, _, count=count: np.partition(x, -count),
            )  # fmt: skip
        for rows, columns in ((1000, 1001), (64, 32_000), (1, 1_000_000)):
            array, third = self.floats(rows, columns), columns // 3
            results += self.work(
                f"median {rows} x {columns}", [array], lambda x: x.median(1)[0],
                lambda x: x.median(1).values, (), partial(np.median, axis=1),
            )  # fmt: skip
            results += self.work(
                f"kthvalue {rows} x {columns}", [array],
                lambda x, third=third: x.kthvalue(third, 1)[0],
                lambda x, third=third: x.kthvalue(third, 1).values, (),
                lambda x, third=third: np.partition(x, third - 1, 1)[:, third - 1],
            )  # fmt: skip
        return results


def _convolved(options: dict[str, int], image: Tensor, weight: Tensor) -> Tensor:
    return image.conv2d(weight, **options)


def _softmax(x: Any) -> Any:
    return x.softmax(-1)


def _turned(x: Any) -> Any:
    return x.transpose(-1, -2).contiguous()


def _life(roll: Build, board: Any) -> Any:
    """Return the Game of Life after five steps; the board's ends meet."""
    for _ in range(5):
        steps = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
        count = sum(
            (roll(board, step, (0, 1)) for step in steps[1:]), roll(board, steps[0], (0, 1))
        )
        board = ((count == 3) | ((board == 1) & (count == 2))) * (board * 0 + 1)
    return board


def _in_int32(x: Tensor, y: Tensor) -> Tensor:
    return x.cast("int32") @ y.cast("int32")


def measure() -> list[dict[str, object]]:
    with hcq.open("cpu") as device:
        use_cache(device, None)
        works = _Works(device)
        return [
            *works.one_hots(),
            *works.thin_products(),
            *works.convolutions(),
            *works.blocks(),
            *works.joined(),
            *works.elements(),
            *works.totals(),
            *works.small(),
            *works.transforms(),
            *works.orders(),
        ]
