"""Whether a second run of a test reached the statements at which the first run failed.

A run that skips, returns early or takes another branch passes without a test. So a second run
clears a failure only if it executed the same checks. These are, by the traceback of the first
run's exception: the statement in each function of the test's module and of its conftest files, and
the deepest `assert` statement, in whatever module it is. A `raise` or `pytest.fail()` runs only in
a run that fails: in its place counts the condition, loop or `try` block that led there.
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import TraceFunction

_Tree = tuple[ast.stmt, ...]  # a statement with those around it, outermost first
_MOST_CAUSES = 8
_OPCODE_BYTES = 2  # dis: since 3.6 each code unit has two bytes


@dataclass(frozen=True)
class Check:
    """A statement, or the condition of one. offsets: of its instructions in `code`."""

    code: CodeType
    offsets: frozenset[int]
    line: int

    def __str__(self) -> str:
        return f"{Path(self.code.co_filename).name}:{self.line}"


def checks_of(error: BaseException, test: Path) -> list[Check]:
    """Return the checks that led to an exception and to its causes. test: the test's module. Empty
    if no function of the test's code was involved."""
    checks: list[Check] = []
    cause: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if cause is None:
            break
        checks += _own_checks(cause, test)
        cause = cause.__cause__ or cause.__context__
    return list(dict.fromkeys(checks))


def _own_checks(error: BaseException, test: Path) -> list[Check]:
    frames = [
        (code, tree)
        for code, tree in _frames(error)
        if tree and (_is_test_code(code, test) or isinstance(tree[-1], ast.Assert))
    ]
    failing = isinstance(error, AssertionError)
    while frames and not (failing or _is_test_code(frames[-1][0], test)):
        frames.pop()  # an `assert` of another module, which calls the code that failed
    checks: list[Check] = []
    for at, (code, tree) in enumerate(reversed(frames)):
        if at and not _is_test_code(code, test):
            continue
        node: ast.AST | None = tree[-1]
        again = isinstance(tree[-1], ast.Raise) or _handles(tree)  # raised elsewhere before
        if again or (not checks and _raises(tree[-1])):
            node = _guard(tree)
        if node is not None:
            checks.append(_check(code, node))
    if frames and not checks:
        code, tree = frames[-1]
        checks.append(_check(code, tree[-1]))  # a run that reaches it fails
    return checks


class Reached:
    """Watches the calling thread, and threads started meanwhile, for checks that are executed. A
    context manager. Not to be used while a debugger traces (see `traced`).

    missing: checks that were not executed yet.
    """

    def __init__(self, checks: list[Check]) -> None:
        self.missing = list(checks)
        self._codes = {id(check.code) for check in checks}
        self._before: tuple[TraceFunction | None, TraceFunction | None] = (None, None)

    def __enter__(self) -> Reached:
        if self._codes:
            self._before = (sys.gettrace(), threading.gettrace())
            threading.settrace(self._called)
            sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        if self._codes:
            here, threads = self._before
            sys.settrace(here)
            threading.settrace(threads)

    def _called(self, frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        if id(frame.f_code) not in self._codes or not self.missing:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        if event == "opcode":
            code, at = frame.f_code, frame.f_lasti
            if any(check.code is code and at in check.offsets for check in self.missing):
                self.missing = [
                    check
                    for check in self.missing
                    if check.code is not code or at not in check.offsets
                ]
            if not self.missing:
                frame.f_trace_opcodes = False
                return None
        return self._stepped


def traced() -> bool:
    """Return whether a debugger traces this thread. A measurement of coverage may be interrupted:
    it misses what runs meanwhile."""
    tracer = sys.gettrace()
    return tracer is not None and not type(tracer).__module__.startswith("coverage")


def _frames(error: BaseException) -> Iterator[tuple[CodeType, _Tree]]:
    """Yield the functions that an exception left, outermost first, with the statement in each."""
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        yield code, _statements(code, traceback.tb_lasti)
        traceback = traceback.tb_next


def _is_test_code(code: CodeType, test: Path) -> bool:
    path = Path(code.co_filename)
    return path == test or path.name == "conftest.py"


def _statements(code: CodeType, offset: int) -> _Tree:
    """Return the statement of an instruction, with those around it; empty if the source is not
    available."""
    positions = list(code.co_positions())
    line, _, column, _ = positions[offset // _OPCODE_BYTES]
    if line is None:
        return ()
    return _enclosing(_parsed(code.co_filename), (line, column if column is not None else 0))


@functools.lru_cache(maxsize=64)
def _parsed(path: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _enclosing(tree: ast.Module, place: tuple[int, int]) -> _Tree:
    """Return the statements around a place, outermost first."""
    statements: list[ast.stmt] = []
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                if _contains(child, place):
                    statements.append(child)
                    nodes = [child]
                    break
            elif isinstance(child, ast.ExceptHandler | ast.match_case):
                nodes.append(child)
    return tuple(statements)


def _contains(node: ast.AST, place: tuple[int, int]) -> bool:
    begin, end = _range(node)
    return begin <= place < end


def _range(node: Any) -> tuple[tuple[int, int], tuple[int, int]]:  # Any: expr or stmt
    first = min(
        (decorator.lineno for decorator in getattr(node, "decorator_list", ())), default=node.lineno
    )
    return (first, node.col_offset), (node.end_lineno, node.end_col_offset)


def _raises(statement: ast.stmt) -> bool:
    """Return whether a statement is there to fail: `raise`, `pytest.fail()`, `self.fail()`,
    `assert False`."""
    if isinstance(statement, ast.Assert):
        return isinstance(statement.test, ast.Constant)
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return isinstance(statement, ast.Raise)
    called = statement.value.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return bool(name == "fail")


def _handles(tree: _Tree) -> bool:
    """Return whether a statement is in an `except` block: it runs only in a run that fails."""
    return any(
        isinstance(node, ast.Try | ast.TryStar)
        and any(inner in handler.body for handler in node.handlers)
        for node, inner in itertools.pairwise(tree)
    )


def _guard(tree: _Tree) -> ast.AST | None:
    """Return what decided that a statement runs: the nearest condition or loop around it, or the
    last statement of the `try` block whose `except` it is in. None: it always runs in its
    function."""
    for node, inner in reversed([*itertools.pairwise(tree)]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return None
        if isinstance(node, ast.If | ast.While):
            return node.test
        if isinstance(node, ast.For | ast.AsyncFor):
            return node.iter
        if isinstance(node, ast.Match):
            return node.subject
        if isinstance(node, ast.Try | ast.TryStar) and inner not in (*node.body, *node.finalbody):
            return node.body[-1]
    return None


def _check(code: CodeType, node: Any) -> Check:  # Any: expr or stmt
    """Return the check of a statement or an expression: of a compound statement, its head."""
    begin, end = _range(node)
    body: list[ast.stmt] = getattr(node, "body", []) if isinstance(node, ast.stmt) else []
    if body:
        end = (body[0].lineno, body[0].col_offset)
    offsets = frozenset(
        _OPCODE_BYTES * number
        for number, (line, _, column, _) in enumerate(code.co_positions())
        if line is not None and begin <= (line, column or 0) < end
    )
    return Check(code, offsets, node.lineno)
