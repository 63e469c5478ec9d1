"""Verbs that run models from files: run, chat, serve-llm."""

from __future__ import annotations

import argparse
from pathlib import Path

from ugpu.tools.base.console import Output
from ugpu.tools.verbs.verb import register


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="an ONNX file")
    parser.add_argument("--device", help="default: UGPU_DEVICE, else cpu")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=FILE",
                        help="an input, from a .npy file; default: random numbers")  # fmt: skip
    parser.add_argument("--size", action="append", default=[], metavar="NAME=N",
                        help="a size that the model leaves open; default: 1")  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, metavar="FILE",
                        help="write the outputs to a .npz or .safetensors file")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of random inputs; default: 0")


@register("run", "run an ONNX model and show its outputs and times", _run)
def run(arguments: argparse.Namespace, out: Output) -> int:
    # Loads the compiler, which verbs of other groups do not need.
    from ugpu.tools.models import onnx_run

    options = onnx_run.RunOptions(
        arguments.device, arguments.input, arguments.size, arguments.output, arguments.seed
    )
    return onnx_run.run(arguments.model, options, out)


def _language(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a GGUF file")
    parser.add_argument("--device", help="default: UGPU_DEVICE, else cpu")
    parser.add_argument("--context", type=int, metavar="TOKENS",
                        help="length of a conversation; default: 4096, or the model's")  # fmt: skip
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"),
                        help="type of the weights in memory; default: %(default)s")  # fmt: skip


def _chat(parser: argparse.ArgumentParser) -> None:
    _language(parser)
    parser.add_argument("--prompt", metavar="TEXT", help="one question; default: read from stdin")
    parser.add_argument("--system", default="", metavar="TEXT", help="the system message")
    parser.add_argument("--limit", type=int, metavar="TOKENS", help="most tokens of an answer")
    for name, kind, default, text in (
        ("--temperature", float, 0.8, "0 takes the most likely token"),
        ("--top-k", int, 40, "choose among the k most likely tokens; 0: all"),
        ("--top-p", float, 0.95, "choose among tokens of this total probability"),
        ("--min-p", float, 0.05, "least probability, as a share of the largest"),
        ("--repeat-penalty", float, 1.0, "divides the logits of recent tokens"),
        ("--seed", int, None, "of the choices; default: another each time"),
    ):
        parser.add_argument(name, type=kind, default=default, help=text)


@register("run", "talk to a language model (GGUF)", _chat)
def chat(arguments: argparse.Namespace, out: Output) -> int:
    # Loads the compiler too.
    from ugpu.compiler.language.sampling import Sampling
    from ugpu.tools.models import chat

    sampling = Sampling(
        arguments.temperature, arguments.top_k, arguments.top_p, arguments.min_p,
        arguments.repeat_penalty, seed=arguments.seed,
    )  # fmt: skip
    options = chat.ChatOptions(
        arguments.device, arguments.context, arguments.dtype, arguments.prompt, arguments.system,
        arguments.limit, sampling,
    )  # fmt: skip
    return chat.run(arguments.model, options, out)


def _serve(parser: argparse.ArgumentParser) -> None:
    _language(parser)
    parser.add_argument("--host", default="127.0.0.1", help="default: %(default)s")
    parser.add_argument("--port", type=int, default=8080, help="default: %(default)s")
    parser.add_argument("--key-file", type=Path, metavar="FILE",
                        help="a file with the key that clients must present")  # fmt: skip


@register("run", "serve a language model over OpenAI's HTTP interface", _serve, name="serve-llm")
def serve_llm(arguments: argparse.Namespace, out: Output) -> int:
    # Loads the compiler and the HTTP server.
    from ugpu.tools.models import serve_llm

    key = None
    if arguments.key_file is not None:
        key = arguments.key_file.read_text(encoding="utf-8").strip()
    options = serve_llm.ServeOptions(
        arguments.device, arguments.context, arguments.dtype, arguments.host, arguments.port, key
    )
    return serve_llm.run(arguments.model, options, out)
