"""Whole models on `cpu`, beside PyTorch and onnxruntime, where installed.

Each runs as `jit` replays it, in turns with its peers, with as many threads each
(bench_compiler_peers). Results are compared with PyTorch's before anything is timed. onnxruntime
gets what PyTorch exports (onnx and onnxscript), weights included. On shared machines compare by
`cpu_ratio`, on one processor (`taskset -c 0`).
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from lab.bench.compiler.bench_compiler_peers import Work, _peer, _versus
from lab.bench.models import networks
from lab.bench.models.networks import HEADS, LAYERS, LENGTH, STATE, STEPS, WIDTH, Array, Weights
from lab.bench.models.networks_torch import Networks
from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.compiler.codegen.process.behind import behind
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.hcq.device.device import Device

TURNS = 20
FORWARD: tuple[tuple[str, str, *tuple[int, ...]], ...] = (  # name, network, shape of the input
    ("MiniLM, 32 tokens", "minilm", *networks.MINILM),
    ("MiniLM, 128 tokens", "minilm", 128, 384),
    ("MiniLM, 8 x 32 tokens", "minilm", 8, 32, 384),
    ("MiniLM, 8 x 128 tokens", "minilm", 8, 128, 384),
    ("ResNet-18 at 64^2", "resnet18", 1, 3, 64, 64),
    ("ResNet-18 at 224^2", "resnet18", 1, 3, 224, 224),
    ("ResNet-50 at 224^2", "resnet50", 1, 3, 224, 224),
    ("MobileNetV2 at 64^2", "mobilenet", 1, 3, 64, 64),
    ("MobileNetV2 at 224^2", "mobilenet", 1, 3, 224, 224),
    ("UNet block, 64 of 64^2 to 128^2", "unet_block", 1, 64, 64, 64),
)
TOLERANCE = 2e-4  # of the largest element: by how much results may differ


class _Models:
    """The device, and the peers."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.torch, self.runtime = _peer("torch"), _peer("onnxruntime")
        self.exports = all(_peer(name) is not None for name in ("onnx", "onnxscript"))
        self.threads = len(os.sched_getaffinity(0))
        if self.torch is not None:
            self.torch.set_num_threads(self.threads)
            self.torch.set_grad_enabled(False)
            self.there = Networks(self.torch)
        self.rng = np.random.default_rng(0)

    def floats(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape, dtype=np.float32)

    def tensor(self, array: Array) -> Tensor:
        return Tensor(array, device=self.device).realize()

    def compared(
        self, name: str, ours: Callable[[], Tensor], weights: Weights,
        theirs: Callable[..., Any], arrays: Sequence[Array],
    ) -> list[Any]:  # fmt: skip
        """ours: computes with our weights, which makes them. theirs: of PyTorch's, and inputs."""
        found = ours().numpy()
        behind().wait()  # times are those of the second versions
        ours().realize()

        def mine() -> None:
            ours().realize()
            self.device.synchronize()

        peers: dict[str, Work] = {}
        if self.torch is not None:
            module = self.module(theirs, weights)
            given = [self.torch.from_numpy(array) for array in arrays]
            wanted = module(*given).numpy()
            worst = float(np.abs(found - wanted).max() / np.abs(wanted).max())
            assert worst < TOLERANCE, (name, worst)
            peers["PyTorch"] = partial(module, *given)
            if self.runtime is not None and self.exports:
                peers["onnxruntime"] = self.session(module, given, wanted)
        return _versus(name, mine, peers, TURNS)

    def module(self, theirs: Callable[..., Any], weights: Weights) -> Any:
        """A module of PyTorch's, which its exporter wants."""
        held = Weights(self.torch.from_numpy, weights.arrays)

        class Module(self.torch.nn.Module):  # type: ignore[name-defined, misc]
            def forward(self, *given: Any) -> Any:
                held.restart()
                return theirs(held, *given)

        return Module().eval()

    def session(self, module: Any, given: Sequence[Any], wanted: Array) -> Work:
        session = self.started(self.exported(module, given))
        names = [each.name for each in session.get_inputs()]
        feed = {name: each.numpy() for name, each in zip(names, given, strict=True)}
        found = session.run(None, feed)[0]
        assert float(np.abs(found - wanted).max() / np.abs(wanted).max()) < TOLERANCE
        return partial(session.run, None, feed)

    def exported(self, module: Any, given: Sequence[Any]) -> bytes:
        """Return a module as an ONNX model."""
        exported = io.BytesIO()
        program = self.torch.onnx.export(module, tuple(given), dynamo=True, verbose=False)
        program.save(exported)
        return exported.getvalue()

    def started(self, model: bytes) -> Any:
        """Return onnxruntime's session for a model."""
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads = self.threads
        return self.runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def forward(
        self, name: str, ours: Callable[[Weights, Tensor], Tensor], theirs: str, *shape: int
    ) -> list[Any]:
        array, weights = self.floats(*shape), Weights(self.tensor)
        image = self.tensor(array)

        def run(x: Tensor) -> Tensor:
            weights.restart()
            return ours(weights, x)

        run(image)  # makes the weights
        recorded = jit(run)
        there: Any = None if self.torch is None else getattr(self.there, theirs)
        return self.compared(name, lambda: recorded(image), weights, there, [array])

    def lstm(self) -> list[Any]:
        layer: list[Any] = []

        def there(weights: Weights, x: Any) -> Any:
            if not layer:
                layer.append(self.there.lstm(weights))
            return layer[0](x)[0]

        self.there.lstm_module = there  # type: ignore[attr-defined]
        return self.forward(
            f"LSTM of {STATE}, {STEPS} steps", networks.lstm, "lstm_module", STEPS, 1, STATE
        )

    def decoder(self) -> list[Any]:
        """The last token that its caches have room for."""
        depth = WIDTH // HEADS
        x, angles = self.floats(1, WIDTH), self.floats(depth // 2)
        cosines, sines = np.cos(angles), np.sin(angles)
        before = [self.floats(LAYERS, HEADS, LENGTH - 1, depth) for _ in range(2)]
        room = ((0, 0), (0, 1), (0, 0))
        caches = [[self.tensor(np.pad(each, room)) for each in kind] for kind in before]
        weights = Weights(self.tensor)

        def run(x: Tensor, cosines: Tensor, sines: Tensor, position: Tensor) -> Tensor:
            weights.restart()
            return networks.decode(weights, x, cosines, sines, position, *caches)

        given = [self.tensor(each) for each in (x, cosines, sines)]
        given.append(self.tensor(np.array(LENGTH - 1, np.int32)))
        run(*given)  # makes the weights
        recorded = jit(run)
        there: Any = None if self.torch is None else self.there.decode
        arrays = [x, cosines, sines, *before]
        name = f"Llama-like decoder of {WIDTH} x {LAYERS}, one token of {LENGTH}"
        return self.compared(name, lambda: recorded(*given), weights, there, arrays)


def measure() -> list[dict[str, object]]:
    with hcq.open("cpu") as device:
        use_cache(device, None)
        models = _Models(device)
        return [
            *models.decoder(),
            *models.lstm(),
            *(
                row
                for name, network, *shape in FORWARD
                for row in models.forward(name, getattr(networks, network), network, *shape)
            ),
        ]
