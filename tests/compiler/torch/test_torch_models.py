"""Models of PyTorch on ugpu's devices: exported programs, the backend of torch.compile, and what is
refused. PyTorch is the judge."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ugpu
from tests.support.compiler.compiler_devices import device_fixture
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, BadFile, MissingDependency, NotSupported

torch: Any = pytest.importorskip("torch", reason="the package torch is not installed")
nn = torch.nn
device = device_fixture("cpu", "virtual:navi31", poison=False)


def module(forward: Callable[..., Any], **parts: Any) -> Any:
    """Return a torch.nn.Module of these parts and this forward."""
    made = type(forward.__name__, (nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def residual() -> Any:
    """Convolutions with a sum past two of them."""

    def forward(self: Any, x: Any) -> Any:
        y = torch.relu(self.norms[0](self.first(x)))
        z = self.pool(torch.relu(self.norms[1](self.second(y)) + y))
        return self.last(self.mean(z).flatten(1))

    return module(
        forward, first=nn.Conv2d(3, 8, 3, padding=1), second=nn.Conv2d(8, 8, 3, padding=1),
        norms=nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8)]), pool=nn.MaxPool2d(2),
        mean=nn.AdaptiveAvgPool2d(1), last=nn.Linear(8, 10),
    )  # fmt: skip


def language() -> Any:
    """Tokens through a layer of a transformer, with a causal mask."""

    def forward(self: Any, tokens: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.last(self.layer(self.words(tokens), src_mask=mask))

    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return module(forward, words=nn.Embedding(20, 16), layer=layer, last=nn.Linear(16, 20))


Case = tuple[Callable[[], Any], Callable[[], tuple[Any, ...]]]
MODELS: dict[str, Case] = {
    "residual": (residual, lambda: (torch.randn(2, 3, 12, 12),)),
    "language": (language, lambda: (torch.randint(0, 20, (2, 5)),)),
    "encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2),
        lambda: (torch.randn(2, 6, 16),),
    ),
    "transformer": (
        lambda: nn.Transformer(16, 2, 1, 1, 32, batch_first=True),
        lambda: (torch.randn(2, 6, 16), torch.randn(2, 4, 16)),
    ),
    "attention": (
        lambda: nn.MultiheadAttention(16, 2, batch_first=True),
        lambda: (torch.randn(2, 5, 16),) * 3,
    ),
    "lstm": (lambda: nn.LSTM(6, 8, batch_first=True), lambda: (torch.randn(2, 3, 6),)),
    "gru": (lambda: nn.GRU(6, 8, bidirectional=True), lambda: (torch.randn(3, 2, 6),)),
}  # fmt: skip
ON_GPU = ("residual", "language")


def leaves(result: Any) -> list[Any]:
    found: list[Any] = torch.utils._pytree.tree_leaves(result)
    return found


def close(found: Any, expected: Any) -> None:
    array = found.numpy() if isinstance(found, ugpu.Tensor) else found.detach().numpy()
    np.testing.assert_allclose(array, expected.detach().numpy(), rtol=1e-4, atol=1e-5)


def case(name: str) -> tuple[Any, tuple[Any, ...]]:
    torch.manual_seed(1)
    model, inputs = MODELS[name]
    return model().eval(), inputs()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_exported_models(name: str, device: Device, tmp_path: Path) -> None:
    if device.name != "cpu" and name not in ON_GPU:
        pytest.skip("two models on a virtual card")
    model, inputs = case(name)
    exported = torch.export.export(model, inputs)
    torch.export.save(exported, tmp_path / "m.pt2")
    for source in (exported, tmp_path / "m.pt2"):
        program = ugpu.torch.load(source, device=device)
        for _ in range(3):  # runs, is recorded, is replayed
            found = program(*inputs)
        for ours, theirs in zip(leaves(found), leaves(model(*inputs)), strict=True):
            assert isinstance(ours, ugpu.Tensor) and ours.device is device
            close(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("lstm", "gru")])
def test_compiled_models(name: str, device: Device) -> None:
    if device.name != "cpu" and name not in ON_GPU:
        pytest.skip("two models on a virtual card")
    torch._dynamo.reset()
    model, inputs = case(name)
    fast = ugpu.torch.compile(model, device=device)
    with torch.no_grad():
        for _ in range(3):
            found = fast(*inputs)
        for ours, theirs in zip(leaves(found), leaves(model(*inputs)), strict=True):
            assert ours.dtype == theirs.dtype
            close(ours, theirs)
        next(model.parameters()).mul_(1.5)  # a parameter that changed is copied again
        for ours, theirs in zip(leaves(fast(*inputs)), leaves(model(*inputs)), strict=True):
            close(ours, theirs)


SMALL = {
    "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64,
    "vocab_size": 50,
}  # fmt: skip
TEXT = {**SMALL, "num_key_value_heads": 1, "use_cache": False}
SHORT = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 50, "use_cache": False}
PICTURE = {**SMALL, "image_size": 32, "patch_size": 8}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "config", "options"),
    [
        ("BertModel", "BertConfig", SMALL), ("GPT2LMHeadModel", "GPT2Config", SHORT),
        ("LlamaForCausalLM", "LlamaConfig", TEXT), ("ViTModel", "ViTConfig", PICTURE),
    ],
)  # fmt: skip
def test_models_of_transformers(
    name: str, config: str, options: dict[str, Any], cpu: Device
) -> None:
    package = pytest.importorskip("transformers", reason="the package transformers is a judge")
    torch.manual_seed(2)
    inner = getattr(package, name)(getattr(package, config)(**options)).eval()
    picture = name == "ViTModel"
    given = torch.randn(1, 3, 32, 32) if picture else torch.randint(0, 50, (2, 7))

    def first(self: Any, x: Any) -> Any:
        return self.inner(**{"pixel_values" if picture else "input_ids": x})[0]

    model = module(first, inner=inner)
    program = ugpu.torch.load(torch.export.export(model, (given,)), device=cpu)
    close(program(given), model(given))


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_GPU)
def test_training(name: str, cpu: Device) -> None:
    torch._dynamo.reset()
    model, inputs = case(name)
    reference = copy.deepcopy(model.train())
    fast = ugpu.torch.compile(model, device=cpu)
    for trained, own in ((fast, model), (reference, reference)):
        optimizer = torch.optim.SGD(own.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (trained(*inputs) ** 2).mean().backward()
            optimizer.step()
    for key, value in reference.state_dict().items():
        close(model.state_dict()[key], value)


def doubled() -> Any:
    """A function of numbers, with a buffer that counts its calls."""

    def forward(self: Any, x: Any, named: Any) -> Any:
        self.calls.add_(1)
        return {"twice": x * 2 + self.calls, "whole": (named["y"] // 2, 3)}

    made = module(forward)
    made.register_buffer("calls", torch.zeros(()))
    return made


def test_forms_buffers_and_inputs(cpu: Device) -> None:
    x, y = torch.arange(3.0), torch.arange(4)
    program = ugpu.torch.load(torch.export.export(doubled(), (x, {"y": y})), device=cpu)
    for call in (1, 2, 3):
        found = program(x.numpy(), {"y": ugpu.Tensor(y.numpy(), device=cpu)})
        assert found["twice"].tolist() == [call, call + 2, call + 4]
        assert found["whole"][0].tolist() == [0, 0, 1, 1] and found["whole"][1] == 3
    with pytest.raises(BadArgument, match="takes arguments of the form"):
        program(x, y)
    with pytest.raises(BadArgument, match="expected an ExportedProgram or a path, got forward"):
        ugpu.torch.load(doubled(), device=cpu)


def test_sizes_that_the_export_left_open(cpu: Device) -> None:
    rows = torch.export.Dim("rows", min=2, max=64)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Flatten(0))
    exported = torch.export.export(model, (torch.randn(5, 4),), dynamic_shapes=({0: rows},))
    program = ugpu.torch.load(exported, device=cpu)
    for count in (5, 9, 5, 2):
        x = torch.randn(count, 4)
        close(program(x), model(x))


def test_sizes_that_dynamo_left_open(cpu: Device) -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Flatten(0))
    fast = ugpu.torch.compile(model, device=cpu, dynamic=True)
    with torch.no_grad():
        for count in (5, 9, 5, 2):
            x = torch.randn(count, 4)
            close(fast(x), model(x))


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float8_e4m3fn", "int8", "bool", "int64"])
def test_element_types(kind: str, cpu: Device) -> None:
    def same(self: Any, x: Any) -> Any:
        return x.float() + 1, x.reshape(2, 3)

    x = torch.tensor([0, 1, 2, 3, 4, 5.5]).to(getattr(torch, kind))
    torch._dynamo.reset()
    wide, narrow = torch.compile(module(same), backend=ugpu.torch.backend, options={"device": cpu})(
        x
    )
    assert torch.equal(wide, x.float() + 1)
    assert narrow.dtype == x.dtype and torch.equal(narrow.float(), x.reshape(2, 3).float())


@pytest.mark.parametrize("rows", [False, True])
def test_scaled_products_of_float8(rows: bool, device: Device) -> None:
    def forward(self: Any, x: Any, y: Any, left: Any, right: Any) -> Any:
        return torch._scaled_mm(x, y, left, right, out_dtype=torch.bfloat16)

    torch.manual_seed(3)
    x, y = torch.randn(32, 64), torch.randn(16, 64)
    given = [each.to(torch.float8_e4m3fn) for each in (x, y)]
    scales = (torch.rand(32, 1), torch.rand(1, 16)) if rows else (torch.rand(()), torch.rand(()))
    inputs = (given[0], given[1].t(), *scales)
    program = ugpu.torch.load(torch.export.export(module(forward), inputs), device=device)
    found, expected = program(*inputs), torch._scaled_mm(*inputs, out_dtype=torch.bfloat16)
    assert found.dtype.name == "bfloat16"
    np.testing.assert_allclose(found.numpy(), expected.float().numpy(), rtol=2**-7, atol=1e-3)


def test_missing_operators_are_named_before_anything_runs(cpu: Device, tmp_path: Path) -> None:
    def odd(self: Any, x: Any) -> Any:
        return torch.special.i1(x) + torch.igamma(x, x), torch.fft.fft(x).real

    exported = torch.export.export(module(odd), (torch.ones(3),))
    with pytest.raises(NotSupported, match=r"aten\.igamma\.default, .*i1.*, torch\.complex64"):
        ugpu.torch.load(exported, device=cpu)
    (tmp_path / "m.pt2").write_bytes(b"no archive")
    with pytest.raises(BadFile, match=r"m\.pt2 is not an exported program"):
        ugpu.torch.load(tmp_path / "m.pt2", device=cpu)


def test_without_the_package(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("ugpu.compiler.torch.package.importlib.import_module", absent)
    with pytest.raises(MissingDependency, match=r"ugpu\[torch\]"):
        ugpu.torch.compile(None, device=cpu)
