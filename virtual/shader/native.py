"""Write native functions as Python: words with operators, variables, conditions and loops.

`Native` is one function over `Text`. Its variables are stack slots, which the compiler promotes to
values, so that loops need no phi nodes here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ugpu.virtual.shader.text import Text


@dataclass(frozen=True, eq=False)
class Word:
    """A value of IR with the operators of its kind; integers are unsigned, plain ints are
    constants."""

    native: Native
    text: str
    kind: str

    def _with(self, operation: str, other: Word | int) -> Word:
        right = self.native.constant(self.kind, other) if isinstance(other, int) else other
        return self.native.value(f"{operation} {self.kind} {self.text}, {right.text}", self.kind)

    def _compare(self, predicate: str, other: Word | int) -> Word:
        right = self.native.constant(self.kind, other) if isinstance(other, int) else other
        kind = self.kind.replace(_element(self.kind), "i1")
        text = f"icmp {predicate} {self.kind} {self.text}, {right.text}"
        return self.native.value(text, kind)

    def __add__(self, other: Word | int) -> Word:
        return self._with("add", other)

    def __sub__(self, other: Word | int) -> Word:
        return self._with("sub", other)

    def __mul__(self, other: Word | int) -> Word:
        return self._with("mul", other)

    def __and__(self, other: Word | int) -> Word:
        return self._with("and", other)

    def __or__(self, other: Word | int) -> Word:
        return self._with("or", other)

    def __xor__(self, other: Word | int) -> Word:
        return self._with("xor", other)

    def __lshift__(self, other: Word | int) -> Word:
        return self._with("shl", other)

    def __rshift__(self, other: Word | int) -> Word:
        return self._with("lshr", other)

    def __mod__(self, other: Word | int) -> Word:
        return self._with("urem", other)

    def same(self, other: Word | int) -> Word:
        """Return whether both are equal."""
        return self._compare("eq", other)

    def differs(self, other: Word | int) -> Word:
        """Return whether both are unequal."""
        return self._compare("ne", other)

    def below(self, other: Word | int) -> Word:
        """Return whether this is less."""
        return self._compare("ult", other)

    def above(self, other: Word | int) -> Word:
        """Return whether this is greater."""
        return self._compare("ugt", other)

    def to(self, kind: str) -> Word:
        """Return the same bits, truncated or zero-extended; pointers are 64-bit integers."""
        if kind == self.kind:
            return self
        if _element(kind) == "ptr":
            operation = "inttoptr"
        elif _element(self.kind) == "ptr":
            operation = "ptrtoint"
        elif _bits(kind) == _bits(self.kind):
            operation = "bitcast"
        else:
            operation = "zext" if _bits(kind) > _bits(self.kind) else "trunc"
        return self.native.value(f"{operation} {self.kind} {self.text} to {kind}", kind)

    def lane(self, index: Word | int) -> Word:
        """Return an element of a vector."""
        text = f"i32 {index}" if isinstance(index, int) else f"{index.kind} {index.text}"
        element = _element(self.kind)
        return self.native.value(f"extractelement {self.kind} {self.text}, {text}", element)

    def byte(self, offset: Word | int) -> Word:
        """Return a pointer that is `offset` bytes further on."""
        text = f"i64 {offset}" if isinstance(offset, int) else f"{offset.kind} {offset.text}"
        return self.native.value(f"getelementptr i8, ptr {self.text}, {text}", "ptr")


def _element(kind: str) -> str:
    return kind.split(" x ")[-1].rstrip(">")


def _bits(kind: str) -> int:
    if kind.startswith("<"):
        return int(kind[1:].split(" x ")[0]) * _bits(_element(kind))
    return {"float": 32, "half": 16, "double": 64}.get(kind) or int(kind[1:])


class Variable:
    """A word that can change."""

    def __init__(self, native: Native, slot: str, kind: str) -> None:
        self._native, self._slot, self._kind = native, slot, kind

    def get(self) -> Word:
        """Return its current value."""
        return self._native.value(f"load {self._kind}, ptr {self._slot}", self._kind)

    def set(self, value: Word | int) -> None:
        """Set its value."""
        text = str(value) if isinstance(value, int) else value.text
        self._native.do(f"store {self._kind} {text}, ptr {self._slot}")


class Native:
    """One function. result: its kind; parameters: (kind, name) each, the first the worker context
    if it is used. part: inline it into the functions that call it."""

    def __init__(
        self, name: str, result: str, *parameters: tuple[str, str], part: bool = False
    ) -> None:
        self.name, self.result = name, result
        self._linkage, self._inlined = ("internal ", "alwaysinline") if part else ("", "noinline")
        self._body = Text(prefix="n")
        self.declarations = self._body.declarations
        self._listed = ", ".join(f"{kind} %{n}" for kind, n in parameters)
        self._slots: list[str] = []
        self.given = [Word(self, f"%{n}", kind) for kind, n in parameters]

    def text(self) -> str:
        """Return the function as text; reaching its end returns no result."""
        last = "ret void" if self.result == "void" else "unreachable"
        return "\n".join([
            f"define {self._linkage}{self.result} @{self.name}({self._listed}) {self._inlined} {{",
            "begin:",
            *self._slots, self._body.text(), f"  {last}", "}",
        ])  # fmt: skip

    # -- lines -----------------------------------------------------------------------------------

    def do(self, line: str) -> None:
        """Append a line."""
        self._body.do(line)

    def value(self, expression: str, kind: str) -> Word:
        """Append an instruction with a result."""
        return Word(self, self._body.value(expression), kind)

    def constant(self, kind: str, value: int) -> Word:
        """Return a constant; for a vector kind, in all its elements."""
        if kind.startswith("<"):
            return Word(self, f"splat ({_element(kind)} {value})", kind)
        return Word(self, str(value), kind)

    def word(self, value: int) -> Word:
        """Return a 64-bit constant."""
        return self.constant("i64", value)

    def call(self, kind: str, function: str, *arguments: Word) -> Word:
        """Call a function; declare it if it is an intrinsic."""
        if function.startswith("llvm."):
            types = ", ".join(a.kind for a in arguments)
            self.declarations.add(f"declare {kind} @{function}({types})")
        text = f"call {kind} @{function}({', '.join(f'{a.kind} {a.text}' for a in arguments)})"
        if kind == "void":
            self.do(text)
            return Word(self, "", kind)
        return self.value(text, kind)

    def give(self, value: Word | int | None = None) -> None:
        """Return from the function."""
        text = "void" if value is None else f"{self.result} {getattr(value, 'text', value)}"
        self.do(f"ret {text}")
        self._body.begin(self._body.new_label("after"))

    def choose(self, condition: Word, yes: Word, no: Word) -> Word:
        """Return one of two words, depending on a condition."""
        text = f"select {condition.kind} {condition.text}, {yes.kind} {yes.text}, "
        return self.value(f"{text}{no.kind} {no.text}", yes.kind)

    # -- memory ----------------------------------------------------------------------------------

    def field(self, offset: int, kind: str) -> Word:
        """Load a field of the worker context."""
        return self.load(kind, self.given[0].byte(offset))

    def load(self, kind: str, at: Word, align: int = 1) -> Word:
        """Load from a pointer."""
        return self.value(f"load {kind}, ptr {at.text}, align {align}", kind)

    def store(self, value: Word, at: Word, align: int = 1) -> None:
        """Store to a pointer."""
        self.do(f"store {value.kind} {value.text}, ptr {at.text}, align {align}")

    def change(self, at: Word, kind: str, by: Word | int) -> Word:
        """Add to a number in memory; return its old value."""
        old = self.load(kind, at)
        self.store(old + by, at)
        return old

    def spread(self, kind: str, scalar: Word) -> Word:
        """Return a vector of equal elements."""
        one = self.value(f"insertelement {kind} poison, {scalar.kind} {scalar.text}, i32 0", kind)
        count = kind[1:].split(" x ")[0]
        order = f"<{count} x i32> zeroinitializer"
        return self.value(f"shufflevector {kind} {one.text}, {kind} poison, {order}", kind)

    def variable(self, kind: str, initial: Word | int) -> Variable:
        """Return a new variable."""
        slot = f"%v{len(self._slots)}"
        self._slots.append(f"  {slot} = alloca {kind}")
        made = Variable(self, slot, kind)
        made.set(initial)
        return made

    # -- control ---------------------------------------------------------------------------------

    @contextmanager
    def when(self, condition: Word) -> Iterator[None]:
        """Run the block if the condition (i1) holds."""
        yes, on = self._body.new_label("yes"), self._body.new_label("on")
        self.do(f"br i1 {condition.text}, label %{yes}, label %{on}")
        self._body.begin(yes)
        yield
        self.do(f"br label %{on}")
        self._body.begin(on)

    @contextmanager
    def count(self, end: Word | int, start: Word | int = 0, step: int = 1) -> Iterator[Word]:
        """Repeat the block with an i64 from `start` to below `end`."""
        at = self.variable("i64", start)
        loop, body, on = (
            self._body.new_label("loop"),
            self._body.new_label("body"),
            self._body.new_label("on"),
        )
        self.do(f"br label %{loop}")
        self._body.begin(loop)
        now = at.get()
        more = now.below(end)
        self.do(f"br i1 {more.text}, label %{body}, label %{on}")
        self._body.begin(body)
        yield now
        at.set(now + step)
        self.do(f"br label %{loop}")
        self._body.begin(on)

    @contextmanager
    def each_lane(self, lanes: Word) -> Iterator[Word]:
        """Repeat the block with the number (i32) of every lane whose bit is set in `lanes`, one bit
        a lane."""
        left = self.variable(lanes.kind, lanes)
        loop, body, on = (
            self._body.new_label("loop"),
            self._body.new_label("body"),
            self._body.new_label("on"),
        )
        self.do(f"br label %{loop}")
        self._body.begin(loop)
        now = left.get()
        self.do(f"br i1 {now.differs(0).text}, label %{body}, label %{on}")
        self._body.begin(body)
        yield self.call(now.kind, f"llvm.cttz.{now.kind}", now, Word(self, "true", "i1")).to("i32")
        left.set(now & (now - 1))
        self.do(f"br label %{loop}")
        self._body.begin(on)


def joined(functions: Sequence[Native]) -> tuple[str, set[str]]:
    """Return the IR of functions and the declarations they need."""
    needed: set[str] = set()
    for function in functions:
        needed |= function.declarations
    return "\n".join(function.text() for function in functions), needed
