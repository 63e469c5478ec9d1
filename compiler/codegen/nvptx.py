"""Kernels for NVIDIA GPUs (TargetSpec.abi "ptx").

LLVM's NVPTXUsage; PTX ISA: "Special Registers", "bar", "cp.async", "ldmatrix", "wgmma". LLVM has no
intrinsic for `wgmma.mma_async`, which is therefore emitted as PTX. Its totals are both operands and
results, and also those of the last wait; otherwise their readers would not be ordered after it.
"""

from __future__ import annotations

from typing import ClassVar

from ugpu.compiler.codegen.gpu import Gpu
from ugpu.compiler.codegen.instructions.exchange import Word, nvidia
from ugpu.compiler.codegen.lines import element_type
from ugpu.compiler.codegen.values import Values
from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.algebra import Index, constant
from ugpu.compiler.expression.value import Memory
from ugpu.compiler.kernel.ir import Asynchronous, Await, Bulk, Close, Fetch, GroupProduct, Signal
from ugpu.compiler.kernel.matrix_units import CORE, GROUP_UNITS, ROW

ALIGNED = 8 * ROW  # alignment of swizzled memory: bytes after which the exchange of chunks repeats

# The descriptor of a factor in shared memory (PTX ISA, "Matrix Descriptor Format"): the address in
# units of 16 bytes in bits 0-13; in bits 16-29 the distance of neighbours along the leading
# dimension, in bits 32-45 along the other; in bits 62-63 how chunks are exchanged.
_LEADING, _STRIDE, _SWIZZLE_128 = 16, 32, 1 << 62
_UNIT = 16
_ADDRESS = 0x3FFF
_KINDS = {"float16": "f16", "bfloat16": "bf16", "tf32": "tf32", "int8": "s8",
          "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}  # fmt: skip


def descriptor(turned: bool, length: int) -> int:
    """Return the upper part of a descriptor for rows of 128 bytes. length: elements of a row, and
    rows of a block of turned ones. Eight rows are 1024 bytes; the leading dimension matters only
    where turned rows are stored block after block."""
    leading = length * ROW // _UNIT if turned else 1
    return _SWIZZLE_128 | ALIGNED // _UNIT << _STRIDE | leading << _LEADING


# The same for core matrices of 128 bytes side by side (kernel.nvidia.packed), which are not
# swizzled: neighbours along a row of 128 bytes are consecutive, eight rows are 1024 bytes.
PACKED = ALIGNED // _UNIT << _STRIDE | CORE // _UNIT << _LEADING


class NvidiaValues(Values):
    """Values of NVIDIA's GPUs."""

    def other_lane(self, mask: int) -> Word:
        return nvidia(self, mask)


class Nvidia(Gpu):
    """A PTX entry."""

    values = NvidiaValues
    pointers: ClassVar = {
        "global": "ptr addrspace(1)",
        "local": "ptr addrspace(3)",
        "register": "ptr",
    }
    convention = "ptx_kernel"
    thread = "llvm.nvvm.read.ptx.sreg.tid.x"
    group = "llvm.nvvm.read.ptx.sreg.ctaid.{}"
    separator = "_"

    def barrier(self) -> None:
        """Wait for all threads of the group; also order their accesses to shared memory."""
        name = "llvm.nvvm.barrier.cta.sync.aligned.all"
        self.lines.declarations.add(f"declare void @{name}(i32)")
        self.lines.put(f"call void @{name}(i32 0)")

    def meet(self) -> None:
        self._plain("barrier.cluster.arrive")
        self._plain("barrier.cluster.wait")

    def attributes(self) -> str:
        together = f' "nvvm.cluster_dim"="{self.kernel.cluster},1,1"'
        several = self.kernel.cluster > 1
        return f'"nvvm.reqntid"="{self.kernel.block},1,1"{together if several else ""}'

    def dynamic(self) -> list[str]:
        """Return one array of open size for all memory that the launch gives."""
        lines, offset = self.lines, 0
        name = f"@{self.kernel.name}{self.separator}ring"
        for memory in self.kernel.locals:
            if memory.dynamic:
                place = f"getelementptr inbounds (i8, ptr addrspace(3) {name}, i32 {offset})"
                lines.pointers[memory.name] = place
                offset += memory.count * memory.dtype.itemsize
        if not offset:
            return []
        return [f"{name} = external addrspace(3) global [0 x i8], align {ALIGNED}"]

    # ---- asynchronous operations ---------------------------------------------------------------

    def asynchronous(self, statement: Asynchronous) -> None:
        lines = self.lines
        if isinstance(statement, Fetch):
            self._fetch(statement)
        elif isinstance(statement, Signal):
            self._signal(statement)
        elif isinstance(statement, Bulk):
            self._bulk(statement)
        elif isinstance(statement, Close):
            self._plain("cp.async.commit.group")
        elif isinstance(statement, Await):
            self._plain("cp.async.wait.group", ("i32", str(statement.pending)))
            if statement.units:
                self._plain("fence.proxy.async.shared_cta")
            lines.shared.clear()
        elif isinstance(statement, GroupProduct):
            self._group_product(statement)
        elif statement.pending:
            self._plain("wgmma.wait_group.sync.aligned", ("i64", str(statement.pending)))
        else:
            self._on_totals("wgmma.wait_group.sync.aligned 0;", statement.totals, [])
        lines.private.clear()

    def _plain(self, name: str, *arguments: tuple[str, str]) -> None:
        kinds = ", ".join(kind for kind, _ in arguments)
        given = ", ".join(f"{kind} {text}" for kind, text in arguments)
        self.lines.declarations.add(f"declare void @llvm.nvvm.{name}({kinds})")
        self.lines.put(f"call void @llvm.nvvm.{name}({given})")

    def _fetch(self, fetch: Fetch) -> None:
        """Fetch 16 bytes; none of them is read if the conditions do not hold."""
        lines, source = self.lines, fetch.source
        target = lines.address(fetch.memory, fetch.index, fetch.index)
        arguments = [("ptr addrspace(3)", target)]
        position: Index | str = source.index
        size = []
        if source.conditions:
            allowed = lines.conditions(source.conditions)
            inside, kind = lines.index(source.index), lines.index_type
            position = lines.new(f"select i1 {allowed}, {kind} {inside}, {kind} 0")
            size = [("i32", lines.new(f"select i1 {allowed}, i32 16, i32 0"))]
        arguments.append(("ptr addrspace(1)", lines.address(source.memory, position, source.index)))
        name = f"cp.async.cg.shared.global.16{'.s' if size else ''}"
        self._plain(name, *arguments, *size)

    def _shared(self, memory: Memory, index: Index) -> str:
        """Return the 32-bit address of an element in shared memory."""
        pointer = self.lines.address(memory, index, index)
        return self.lines.new(f"ptrtoint ptr addrspace(3) {pointer} to i32")

    def _direct(self, text: str, *arguments: tuple[str, str], result: str = "void") -> str:
        """Emit PTX that reads or writes memory in ways that LLVM does not see."""
        kinds = {"i16": "h", "i32": "r", "i64": "l", "ptr addrspace(1)": "l"}
        constraints = ["=r"] if result != "void" else []
        constraints += [*(kinds[kind] for kind, _ in arguments), "~{memory}"]
        given = ", ".join(f"{kind} {text}" for kind, text in arguments)
        call = f'call {result} asm sideeffect "{text}", "{",".join(constraints)}"({given})'
        if result != "void":
            return self.lines.new(call)
        self.lines.put(call)
        return ""

    def _signal(self, signal: Signal) -> None:
        lines, memory = self.lines, signal.memory
        if signal.operation == "begin":
            for number in range(memory.count):
                each = ("i32", self._shared(memory, constant(number)))
                arrivals = ("i32", lines.index(signal.number))
                self._direct("mbarrier.init.shared::cta.b64 [$0], $1;", each, arrivals)
            # bulk copies, which see memory by another path, find them then
            self._plain("fence.proxy.async.shared_cta")
            if self.kernel.cluster > 1:
                self._direct("fence.mbarrier_init.release.cluster;")
            return
        at = ("i32", self._shared(memory, signal.index))
        if signal.operation == "expect":
            text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
            self._direct(text, at, ("i32", lines.index(signal.number)))
        elif signal.group is not None:
            text = (
                "{ .reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; "
                "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }"
            )
            self._direct(text, at, ("i32", lines.index(signal.group)))
        elif signal.operation == "arrive":
            self._direct("mbarrier.arrive.shared::cta.b64 _, [$0];", at)
        else:
            self._wait(at, lines.index(signal.number))
        lines.shared.clear()

    def _wait(self, at: tuple[str, str], parity: str) -> None:
        """Poll until the phase is over; each time the hardware suspends the threads for a while."""
        lines = self.lines
        if lines.index_type == "i64" and parity.startswith("%"):
            parity = lines.new(f"trunc i64 {parity} to i32")
        again, after = lines.label("wait"), lines.label("over")
        lines.put(f"br label %{again}")
        self.enter(again)
        text = (
            "{ .reg .pred over; mbarrier.try_wait.parity.shared::cta.b64 over, [$1], $2; "
            "selp.b32 $0, 1, 0, over; }"
        )
        over = self._direct(text, at, ("i32", parity), result="i32")
        test = lines.new(f"icmp ne i32 {over}, 0")
        lines.put(f"br i1 {test}, label %{after}, label %{again}")
        self.enter(after)

    def _bulk(self, bulk: Bulk) -> None:
        name = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        text = f"{name} [$0], [$1], $2, [$3];"
        several = []
        if bulk.groups > 1:
            text = f"{name}.multicast::cluster [$0], [$1], $2, [$3], $4;"
            several = [("i16", str((1 << bulk.groups) - 1))]
        source = self.lines.address(bulk.source, bulk.start, bulk.start)
        self._direct(
            text,
            ("i32", self._shared(bulk.memory, bulk.index)),
            ("ptr addrspace(1)", source),
            ("i32", str(bulk.count * bulk.memory.dtype.itemsize)),
            ("i32", self._shared(bulk.signal, bulk.place)),
            *several,
        )

    def _group_product(self, product: GroupProduct) -> None:
        """Emit one piece of PTX from the fence to the end of the group: inside it, and until they
        are waited for, the totals' registers must not be accessed, not even moved."""
        unit = GROUP_UNITS[product.unit]
        length = ROW // unit.element.itemsize
        name, count = _KINDS[unit.name.partition(".")[2]], product.columns // 2
        operation = f"wgmma.mma_async.sync.aligned.m64n{product.columns}k{unit.depth}"
        turns = "".join(f", {int(turned)}" for turned in product.turned) if unit.turns else ""
        total, scales = ("f32", ", 1, 1") if unit.total is float32 else ("s32", "")
        given: list[tuple[str, str]] = []
        text = [".reg .pred add", "setp.ne.b32 add, 1, 0", "wgmma.fence.sync.aligned"]
        for tile, *indices in product.steps:
            held = ", ".join(f"${tile * count + i}" for i in range(count))
            places = zip((product.left, product.right), indices, product.turned, strict=True)
            first = product.totals.count + len(given)
            given += [("i64", self._described(*place, length)) for place in places]
            factors = f"${first}, ${first + 1}, add{scales}{turns}"
            text.append(f"{operation}.{total}.{name}.{name} {{{held}}}, {factors}")
        text.append("wgmma.commit_group.sync.aligned")
        self._on_totals(f"{{ {'; '.join(text)}; }}", product.totals, given)

    def _described(self, memory: Memory, index: Index, turned: bool, length: int) -> str:
        """Return the descriptor of a factor that starts at an element."""
        lines = self.lines
        offset = lines.index(index * memory.dtype.itemsize)
        place = lines.pointers[memory.name]
        start = lines.new(f"ptrtoint ptr addrspace(3) {place} to i32")
        if lines.index_type == "i64":
            offset = lines.new(f"trunc i64 {offset} to i32") if offset[0] == "%" else offset
        at = lines.new(f"add i32 {start}, {offset}")
        units = lines.new(f"and i32 {lines.new(f'lshr i32 {at}, 4')}, {_ADDRESS}")
        wide = lines.new(f"zext i32 {units} to i64")
        upper = PACKED if memory.ring else descriptor(turned, length)
        return lines.new(f"or disjoint i64 {wide}, {upper}")

    def _on_totals(self, text: str, totals: Memory, given: list[tuple[str, str]]) -> None:
        """Emit PTX whose first operands are the totals, which it may change, then `given`."""
        lines, kind, count = self.lines, element_type(totals.dtype), totals.count
        places = [lines.address(totals, at, at) for at in map(constant, range(count))]
        held = [(kind, lines.new(f"load {kind}, ptr {place}")) for place in places]
        result = "{ " + ", ".join([kind] * count) + " }"
        constraints = ",".join(
            [
                *["=f" if kind == "float" else "=r"] * count,
                *["l"] * len(given),
                *map(str, range(count)),
                "~{memory}",
            ]
        )
        arguments = ", ".join(f"{kind} {text}" for kind, text in (*given, *held))
        made = lines.new(f'call {result} asm sideeffect "{text}", "{constraints}"({arguments})')
        for number, place in enumerate(places):
            value = lines.new(f"extractvalue {result} {made}, {number}")
            lines.put(f"store {kind} {value}, ptr {place}")
