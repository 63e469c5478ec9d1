"""mbarrier objects: arrivals, expected bytes and waiting by phase.

A wait for an incomplete phase returns false at once, after the copies that it waits for have been
carried out. The program's loop around it lets others run.
Source: PTX ISA 8.x, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.ptx.module import Instruction, Operand, Sink
from ugpu.virtual.nvidia.sm.runtime.flights.mbarriers import OPERATIONS
from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX, WIDE
from ugpu.virtual.nvidia.sm.translator.access.bulk import published, written
from ugpu.virtual.nvidia.sm.translator.access.memory import address, resolve
from ugpu.virtual.nvidia.sm.translator.handler import Handler, type_of
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.moves import space_of
from ugpu.virtual.nvidia.sm.translator.value import Value, number

_QUIET = frozenset((
    "relaxed", "acquire", "release", "cta", "cluster", "shared", "shared::cta", "shared::cluster",
    "b64", "noComplete",
))  # fmt: skip


def act(k: Kernel, operation: str, where: Operand, value: Value, space: str) -> Value:
    """Apply one operation to the objects at an address of a state space. value: i64."""
    at = k.varying(address(k, where)[0])
    mask = k.mask()
    hosts = resolve(k, space, at, 8, True, mask)
    text = k.call(
        WIDE, f"{PREFIX}mbarrier", ("ptr", "%context"), (WIDE, hosts), ("i32", mask),
        ("i32", str(OPERATIONS.index(operation))), (WIDE, k.vec(value)),
    )  # fmt: skip
    k.fault_if_found()
    if k.proxies and operation == "init":
        written(k, hosts, mask, 8)
    return Value(text, "i64", False)


def _emit(k: Kernel, i: Instruction) -> None:
    if type_of(k, i) != "b64":
        raise k.bad("the type must be .b64")
    name, rest = i.modifiers[0], set(i.modifiers[1:])
    space = space_of(i.modifiers)
    parity = "parity" in rest
    transactions = "expect_tx" in rest
    if rest - _QUIET - {"parity", "expect_tx"}:
        raise k.unsupported()
    operands = i.operands
    if name == "pending_count":
        state = k.source(operands[1], "b64")
        k.write(operands[0], k.cast("trunc", k.op("and", state, number("i64", 0xFFFFF)), "i32"))
    elif name in ("init", "expect_tx", "complete_tx"):
        act(k, name, operands[0], _count(k, operands, 1), space)
    elif name == "inval":
        act(k, name, operands[0], number("i64", 0), space)
    elif name in ("arrive", "arrive_drop"):
        published(k)
        operation = f"{name}.expect_tx" if transactions else name
        if space == "shared::cluster" and not isinstance(operands[0], Sink):
            raise k.bad("an arrival in the cluster has no result")
        k.write(operands[0], act(k, operation, operands[1], _count(k, operands, 2), space))
    elif name in ("test_wait", "try_wait") and space != "shared::cluster":
        kind = "b32" if parity else "b64"
        state = k.resize(k.source(operands[2], kind), "i64", False)
        over = act(k, "test.parity" if parity else "test", operands[1], state, space)
        passed = k.cmp("ne", over, number("i64", 0))
        _let_others_run(k, passed)
        k.write(operands[0], passed)
    else:
        raise k.unsupported()


def _let_others_run(k: Kernel, passed: Value) -> None:
    """Let other warps run at the next back edge of a loop, if lanes must wait."""
    waiting = k.value(f"xor i32 {k.mask_bits(passed)}, -1")
    some = k.value(f"icmp ne i32 {k.value(f'and i32 {waiting}, {k.mask()}')}, 0")
    left = k.value("load i32, ptr %budget")
    k.do(f"store i32 {k.value(f'select i1 {some}, i32 1, i32 {left}')}, ptr %budget")


def _count(k: Kernel, operands: tuple[Operand, ...], place: int) -> Value:
    """Return the operand at `place` as i64; 1 if there is none."""
    if len(operands) <= place:
        return number("i64", 1)
    return k.resize(k.source(operands[place], "u32"), "i64", False)


def handlers() -> dict[str, Handler]:
    """Return the emitters by name."""
    return {"mbarrier": _emit}
