"""`ugpu run`, `ugpu chat` and `ugpu serve-llm`."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.compiler import language_models
from ugpu import compiler
from ugpu.compiler.language.model import LanguageModel
from ugpu.tools import cli


def test_run_shows_the_outputs_of_an_onnx_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])], "graph",
        [helper.make_tensor_value_info("x", kind, ["n", 2])],
        [helper.make_tensor_value_info("y", kind, ["n", 2])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "m.onnx")
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.save(tmp_path / "x.npy", x)
    words = ["run", str(tmp_path / "m.onnx"), "--device", "cpu"]
    output = tmp_path / "out.npz"
    assert cli.main([*words, "--input", f"x={tmp_path / 'x.npy'}", "-o", str(output)]) == 0
    assert "1 node, opset 17, on cpu" in capsys.readouterr().out
    assert np.array_equal(compiler.load(output)["y"].numpy(), 2 * x)
    assert cli.main([*words, "--size", "n=5", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["outputs"] == {"y": {"type": "float32", "shape": [5, 2]}}
    assert cli.main([*words, "--input", "z=none.npy"]) == 2
    assert "the model has no input 'z'" in capsys.readouterr().err
    assert cli.main(["run", str(tmp_path / "none.onnx")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_chat_refuses_what_is_no_language_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert cli.main(["chat", str(tmp_path / "m.gguf"), "--prompt", "hello"]) == 2
    assert "BadFile" in capsys.readouterr().err
    assert cli.main(["chat", str(tmp_path / "m.gguf"), "--temperature", "-1"]) == 2
    assert "temperature must be from 0" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("tokenizers") is None, reason="the extra chat is not installed"
)
def test_chat_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = language_models.write(tmp_path / "m.gguf")
    words = ["chat", str(path), "--device", "cpu", "--prompt", "hello", "--temperature", "0",
             "--limit", "5"]  # fmt: skip
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert "tiny llama on cpu" in shown and "5 tokens," in shown
    assert cli.main([*words, "--json"]) == 0
    turn = json.loads(capsys.readouterr().out)["turns"][0]
    assert turn["tokens"] == 5 and turn["answer"] in shown


def test_serve_llm_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="the extra chat is not installed")
    from aiohttp.test_utils import TestClient, TestServer

    from ugpu.tools.models.serve_llm import application

    model = LanguageModel(language_models.write(tmp_path / "m.gguf"), device="cpu")
    half = b'"\\ud800"'
    bodies = (
        b"[" * 100_000, b"\xff", b'{"prompt": 1}', b'{"prompt": ' + half + b"}",
        b'{"prompt": "he", "top_k": 1.5}', b'{"prompt": "he", "temperature": 1' + b"0" * 400 + b"}",
        b'{"prompt": "he", "stop": [' + half + b"]}", b'{"prompt": "he", "seed": 1.5}',
    )  # fmt: skip

    async def served() -> None:
        async with TestClient(TestServer(application(model, "s\u00e9cret"))) as client:
            key = {"Authorization": "Bearer s\u00e9cret"}
            for body in bodies:
                for kind in ("application/json", "application/json; charset=nonsense"):
                    headers = {**key, "Content-Type": kind}
                    answer = await client.post("/v1/completions", data=body, headers=headers)
                    assert answer.status == 400, (body, await answer.text())
            other = {"Authorization": "Bearer \udcff"}
            assert (await client.get("/v1/models", headers=other)).status == 401

    asyncio.run(served())


@pytest.mark.slow
def test_serve_llm_speaks_to_the_openai_client(tmp_path: Path) -> None:
    openai = pytest.importorskip("openai", reason="OpenAI's client is the judge")
    pytest.importorskip("tokenizers", reason="the extra chat is not installed")
    from aiohttp.test_utils import TestServer

    from ugpu.tools.models.serve_llm import application

    model = LanguageModel(language_models.write(tmp_path / "m.gguf"), device="cpu")
    messages: Any = [{"role": "user", "content": "hello"}]

    def asked(base: str) -> None:
        client = openai.OpenAI(base_url=f"{base}v1", api_key="secret", max_retries=0)
        name = client.models.list().data[0].id
        assert name == "tiny llama"
        create: Callable[..., Any] = client.chat.completions.create
        whole = create(model=name, messages=messages, temperature=0, max_tokens=6)
        text = whole.choices[0].message.content
        assert whole.usage.completion_tokens == 6 and whole.choices[0].finish_reason == "length"
        parts = list(
            create(model=name, messages=messages, temperature=0, max_tokens=6, stream=True,
                   stream_options={"include_usage": True})
        )  # fmt: skip
        told = "".join(p.choices[0].delta.content or "" for p in parts if p.choices)
        assert told == text and parts[-1].usage.completion_tokens == 6
        stopped = create(model=name, messages=messages, temperature=0, max_tokens=6, stop=[text[1]])
        assert stopped.choices[0].message.content == text[: text.index(text[1])]
        assert stopped.choices[0].finish_reason == "stop"
        assert client.completions.create(model=name, prompt="he", max_tokens=3).choices[0].text
        with pytest.raises(openai.NotFoundError):
            create(model="other", messages=messages)
        for wrong in ({"temperature": -1}, {"max_tokens": 0}, {"n": 2}):
            with pytest.raises(openai.BadRequestError):
                create(**{"model": name, "messages": messages, **wrong})
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{base}v1", api_key="wrong", max_retries=0).models.list()

    async def served() -> None:
        async with TestServer(application(model, "secret")) as server:
            await asyncio.to_thread(asked, str(server.make_url("/")))

    asyncio.run(served())
