"""Alternative graphs with the same result, for compiler.search.forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ugpu.compiler.graph.node import Node

# A form: the nodes to store first, and a function from those to the node to time.
Makes = Callable[[], tuple[Sequence[Node], Callable[[Sequence[Node]], Node]]]
