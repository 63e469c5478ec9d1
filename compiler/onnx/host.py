"""Nodes that are computed on the host, by the reference of the package onnx.

Two kinds: nodes whose inputs are all known and small (shapes, mostly), and the operators of
ON_HOST, whose results have a shape that depends on values, or are strings.
"""

from __future__ import annotations

from typing import Any

from ugpu.compiler.onnx.package import module
from ugpu.hcq.errors import NotSupported

ON_HOST = frozenset(
    (
        "NonZero", "Unique", "Compress", "NonMaxSuppression", "StringConcat", "StringNormalizer",
        "StringSplit", "RegexFullMatch", "TfIdfVectorizer", "HannWindow", "HammingWindow",
        "BlackmanWindow", "MelWeightMatrix", "ArrayFeatureExtractor", "Binarizer", "LabelEncoder",
    )
)  # fmt: skip


class HostNodes:
    """Implementations of the package's reference, made once for each node."""

    def __init__(self, opsets: dict[str, int]) -> None:
        self._opsets = opsets
        self._made: dict[int, tuple[Any, Any]] = {}  # by id; the node is kept alive

    def run(self, node: Any, inputs: list[Any]) -> tuple[Any, ...]:
        """Compute a node's outputs from arrays. Errors of the reference pass, see
        compiler.onnx.graphs.UNFIT."""
        kept = self._made.get(id(node))
        if kept is None:
            kept = self._made[id(node)] = (node, self._implementation(node))
        result: tuple[Any, ...] = kept[1].run(*inputs)
        return result

    def _implementation(self, node: Any) -> Any:
        folder = "aionnxml." if node.domain == "ai.onnx.ml" else ""
        operators = module(f"onnx.reference.ops.{folder}_op_list")
        version = self._opsets.get(node.domain, 1)
        try:
            made = operators.load_op(node.domain, node.op_type, version)
        except (NotImplementedError, KeyError, AttributeError, RuntimeError) as error:
            raise NotSupported(f"ONNX operator {node.op_type} on the host: {error}") from error
        options = {
            "log": lambda *words: None, "opsets": self._opsets, "verbose": 0, "new_ops": None,
            "evaluator_cls": None, "existing_functions": {},
        }  # fmt: skip
        return made(node, options)
