"""Cases of each ALU instruction of AMD's ISA documents, encoded by tinygrad's assembler.

The documents' pseudocode, the operands' types and the encodings are those of tinygrad's wheel,
which are made from AMD's files: nothing here reads our own tables.
"""

from __future__ import annotations

import importlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from types import ModuleType
from typing import Any

from tests.foreign.pseudocode.pseudocode_corrections import corrected
from tests.support.amd.isa.gfx_cases import BLOCK, OUT_BLOCK, Case

ARCHES = {"gfx11": "rdna3", "gfx12": "rdna4"}
ALU = (
    "SOP1Op", "SOP2Op", "SOPCOp", "SOPKOp", "VOP1Op", "VOP2Op", "VOPCOp", "VOP3Op", "VOP3SDOp",
    "VOP3POp", "VOPDOp",
)  # fmt: skip
LITERAL = 0x3FC1_3579
_SOURCES, _DST = (8, 10, 12), 16  # vector registers
_S_SOURCES, _S_DST, _S_MASK = (40, 42, 44), 46, 44  # scalar ones
# They compute nothing: control flow, messages, modes and waits; and matrices, whose text is not
# pseudocode.
OTHER = (
    "GETPC", "SETPC", "SWAPPC", "RFE", "BARRIER", "ALLOC_VGPR", "VERSION", "GETREG", "SETREG",
    "CALL", "WAITCNT", "WMMA", "SWMMAC",
)  # fmt: skip
_HALF = "16"
# RDNA4 ISA document, 7.2.3.1: what output modifiers are not supported for; and moves.
_UNSCALED = ("SWAP", "PERMLANE", "DOT2", "DOT4", "CMP", "FP8", "BF8", "CNDMASK", "MOV", "READ",
             "WRITE", "LERP", "INTERP")  # fmt: skip
_SATURATING = (
    "ADD_NC", "SUB_NC", "MAD_I16", "MAD_U16", "MAD_I32", "MAD_U32", "PK_ADD_I", "PK_ADD_U",
    "PK_SUB_I", "PK_SUB_U", "PK_MAD_I", "PK_MAD_U", "DOT4_I", "DOT4_U", "DOT8",
)  # fmt: skip


@dataclass(frozen=True)
class Operand:
    """An operand: its kind as AMD's files name it ("f32", "pk2_f16", "m64"), bits, a scalar."""

    kind: str
    width: int
    scalar: bool

    @property
    def floating(self) -> bool:
        """Whether it has a sign that may be changed."""
        return self.kind in ("f16", "f32", "f64")


@dataclass(frozen=True)
class Judged:
    """An instruction in one form: what it is called, its text, operands, modifiers, words.

    Masks of modifiers have a bit a source; opsel has the destination's in bit 3. omod: 1 doubles,
    2 takes four times, 3 half of the result. immediate: the 16 bits of SOPK.
    """

    name: str
    form: str  # the encoding
    variant: str
    text: str
    sources: tuple[Operand, ...]
    target: Operand
    words: tuple[int, ...]
    neg: int = 0
    neg_hi: int = 0
    abs: int = 0
    opsel: int = 0
    opsel_hi: int = 7
    clamp: bool = False
    immediate: int = 0
    omod: int = 0

    @property
    def scalar(self) -> bool:
        """Whether it is an instruction of the scalar unit."""
        return self.form.startswith("SOP")

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.name} {self.variant}"

    @cached_property
    def case(self) -> Case:
        """What runs on the core."""
        return Case(self.label, self.words)


class Document:
    """The pseudocode of a target, and an assembler for it."""

    def __init__(self, target: str, *, as_it_is: bool = False) -> None:
        self._as_it_is = as_it_is
        self.target, self.arch = target, ARCHES[target]
        self.ins = self._module("ins")
        self.texts: dict[Enum, str] = self._module("str_pcode").PCODE
        self._operands: dict[Enum, Any] = self._module("operands").OPERANDS
        self.by_name = {key.name: text for key, text in self.texts.items()}

    def _module(self, name: str) -> ModuleType:
        return importlib.import_module(f"tinygrad.runtime.autogen.amd.{self.arch}.{name}")

    def instructions(self) -> list[Enum]:
        """Return the instructions of the ALUs, with those that do not compute."""
        listed = self._module("enum")
        return [key for name in ALU for key in getattr(listed, name)]

    def text(self, key: Enum) -> str | None:
        """Return an instruction's pseudocode without comments, corrected; a half of a pair has that
        of the instruction."""
        text = self._found(key)
        if text is None or any(part in key.name for part in OTHER):
            return None
        text = re.sub("//.*", "", text)
        return text if self._as_it_is else corrected(key.name, text)

    def _found(self, key: Enum) -> str | None:
        if key in self.texts:
            return self.texts[key]
        name = key.name.replace("V_DUAL_", "V_")
        for ending in ("_E64", "_E32", ""):
            if name + ending in self.by_name:
                return self.by_name[name + ending]
        return None

    def operands(self, key: Enum) -> dict[str, Operand]:
        """Return the operands: "0", "1", "2", "dst"."""
        found = {}
        names = {
            "src0": "0", "vsrc0": "0", "ssrc0": "0", "srcy0": "0", "src1": "1", "vsrc1": "1",
            "ssrc1": "1", "vsrcy1": "1", "src2": "2", "vdst": "dst", "sdst": "dst", "vdsty": "dst",
        }  # fmt: skip
        entries = self._operands.get(key, {})
        for field, (kind, width, place) in entries.items():
            if field not in names or (field == "sdst" and "vdst" in entries):
                continue
            scalar = place.name in ("OPR_SREG", "OPR_SSRC", "OPR_SDST", "OPR_SSRC_LANESEL")
            found[names[field]] = Operand(kind.name[4:].removeprefix("NUM_").lower(), width, scalar)
        return found

    def encode(self, key: Enum, **fields: Any) -> tuple[int, ...]:
        """Return the words of an instruction."""
        name = key.name.lower()
        maker = getattr(self.ins, name)
        known = {field for field, _ in maker.func._fields}
        instruction = maker(**{field: value for field, value in fields.items() if field in known})
        data = instruction.to_bytes()
        return tuple(int.from_bytes(data[n : n + 4], "little") for n in range(0, len(data), 4))

    def program(self, cases: Sequence[Case]) -> bytes:
        """Make the code of `run_core` for this target."""
        return _Program(self).of(cases)


def _vector(number: int, width: int) -> Any:
    from tinygrad.renderer.amd.dsl import Reg

    return Reg(256 + number, max(1, width // 32))


def _scalar(number: int, width: int) -> Any:
    from tinygrad.renderer.amd.dsl import Reg

    return Reg(number, max(1, width // 32))


class Maker:
    """Makes the cases of a document."""

    def __init__(self, document: Document, seed: int) -> None:
        self.document, self.chance = document, random.Random(seed)

    def cases(self, key: Enum) -> Iterator[Judged]:
        """Make the forms of an instruction."""
        text = self.document.text(key)
        if text is None:
            return
        form = type(key).__name__.removesuffix("Op")
        found = self.document.operands(key)
        sources = tuple(found[name] for name in "012" if name in found)
        if "dst" in found:
            target = found["dst"]
        else:
            target = Operand("m64" if "CMP" in key.name else "b32", 32, form == "SOPC")
        make = {"SOPK": self._short_constant, "VOPD": self._pair}.get(form)
        if make is not None:
            yield from make(key, text, sources, target)
        elif form.startswith("SOP"):
            yield self._judged(key, form, "plain", text, sources, target)
        else:
            yield from self._vector_forms(key, form, text, sources, target)

    def _vector_forms(
        self, key: Enum, form: str, text: str, sources: tuple[Operand, ...], target: Operand
    ) -> Iterator[Judged]:
        twin = form == "VOP3" and key.name.endswith("_E64")
        if not twin or "CMPX" in key.name:
            yield self._judged(key, form, "plain", text, sources, target)
        if form in ("VOP1", "VOP2", "VOPC") or ("VGPR[" in text and "OPSEL" not in text):
            return
        chance, packed = self.chance, form == "VOP3P"
        signs = sum(1 << n for n, operand in enumerate(sources) if operand.floating)
        signs &= 1 if "LDEXP" in key.name else 7  # the exponent is a whole number
        carries = form == "VOP3SD"
        halves = sum(1 << n for n, operand in enumerate(sources) if operand.width == 16)
        halves |= 8 * (target.width == 16 and "D0" in text and "FMAC" not in key.name)
        if key.name.startswith("V_S_"):
            halves = 0  # scalar registers have no halves here
        if "OPSEL" in text and not packed:
            halves = _byte_choices(key.name)
        for variant in ("changed", "clamped", "scaled"):
            clamp = variant == "clamped" and self._clamps(key, target)
            if variant == "clamped" and not clamp:
                continue
            omod = chance.randint(1, 3) if variant == "scaled" else 0
            if omod and not self._scales(key, form, target):
                continue
            if packed:
                yield self._packed(key, text, sources, target, variant, clamp)
                continue
            if "DIV_SCALE" in key.name or not (signs or halves or clamp or twin):
                continue
            yield self._judged(
                key, form, variant, text, sources, target,
                neg=chance.getrandbits(3) & signs,
                abs=0 if carries else chance.getrandbits(3) & signs,
                opsel=0 if carries else chance.getrandbits(4) & halves, clamp=clamp, omod=omod,
            )  # fmt: skip

    def _scales(self, key: Enum, form: str, target: Operand) -> bool:
        """Return whether the document has OMOD for an instruction: not for those of _UNSCALED."""
        floats = target.kind in ("f16", "f32", "f64")
        return form == "VOP3" and floats and not any(part in key.name for part in _UNSCALED)

    def _clamps(self, key: Enum, target: Operand) -> bool:
        if "CMP" in key.name or "CNDMASK" in key.name or "_MOV" in key.name:
            return False
        floats = target.kind in ("f16", "f32", "f64", "pk2_f16") and not target.scalar
        return floats or any(part in key.name for part in _SATURATING)

    def _packed(
        self, key: Enum, text: str, sources: tuple[Operand, ...], target: Operand, variant: str,
        clamp: bool,
    ) -> Judged:  # fmt: skip
        chance = self.chance
        mixed, signed = "MIX" in key.name, "_IU" in key.name
        dots = "DOT" in key.name
        floats = mixed or any("f16" in operand.kind for operand in sources)
        present = (1 << len(sources)) - 1
        signs = 3 if signed else present if floats else 0
        return self._judged(
            key, "VOP3P", variant, text, sources, target,
            opsel=0 if dots else chance.getrandbits(3) & present,
            opsel_hi=7 if dots else chance.getrandbits(3) | 7 & ~present,
            neg=chance.getrandbits(3) & signs,
            neg_hi=0 if signed else chance.getrandbits(3) & signs & (3 if dots else 7), clamp=clamp,
        )  # fmt: skip

    def _short_constant(
        self, key: Enum, text: str, sources: tuple[Operand, ...], target: Operand
    ) -> Iterator[Judged]:
        for number in (0, 1, 0x7FFF, 0x8000, 0xFFFF, self.chance.getrandbits(16)):
            register = _scalar(_S_SOURCES[0] if "CMPK" in key.name else _S_DST, 32)
            words = self.document.encode(key, sdst=register, simm16=number)
            yield Judged(
                key.name, "SOPK", f"with {number:#x}", text, (), target, words, immediate=number
            )

    def _pair(
        self, key: Enum, text: str, sources: tuple[Operand, ...], target: Operand
    ) -> Iterator[Judged]:
        """As the second half; the first moves a register to itself."""
        from tinygrad.renderer.amd.dsl import v

        ins, wide = self.document.ins, "AAK" in key.name or "AMK" in key.name
        maker = ins.VOPD_LIT if wide else ins.VOPD
        fields = {"literal": LITERAL} if wide else {}
        instruction = maker(
            ins.VOPDOp.V_DUAL_MOV_B32, key, vdstx=v[17], vdsty=v[16], srcx0=v[17], srcy0=v[8],
            vsrcx1=v[0], vsrcy1=v[10 if len(sources) > 1 else 0], **fields,
        )  # fmt: skip
        data = instruction.to_bytes()
        words = tuple(int.from_bytes(data[n : n + 4], "little") for n in range(0, len(data), 4))
        yield Judged(key.name, "VOPD", "second half", text, sources, target, words)

    def _judged(
        self, key: Enum, form: str, variant: str, text: str, sources: tuple[Operand, ...],
        target: Operand, neg: int = 0, neg_hi: int = 0, abs: int = 0, opsel: int = 0,
        opsel_hi: int = 7, clamp: bool = False, omod: int = 0,
    ) -> Judged:  # fmt: skip
        fields: dict[str, Any] = {
            "neg": neg, "neg_hi": neg_hi, "abs": abs, "opsel": opsel, "opsel_hi": opsel_hi & 3,
            "opsel_hi2": opsel_hi >> 2, "clmp": int(clamp), "literal": LITERAL,
            "omod": omod,
        }  # fmt: skip
        for number, operand in enumerate(sources):
            scalar = operand.scalar or form.startswith("SOP") or operand.kind == "m64"
            scalar = scalar or key.name.startswith("V_S_")
            if scalar:
                register = _scalar(
                    _S_SOURCES[number], 32 if operand.kind == "m64" else operand.width
                )
            else:
                register = _vector(_SOURCES[number], operand.width)
            for name in (f"src{number}", f"ssrc{number}", f"vsrc{number}"):
                fields[name] = register
        masks = target.kind == "m64"
        if masks and "CMPX" in key.name:
            fields["vdst"] = _scalar(126, 32)
        elif masks or target.scalar or key.name.startswith("V_S_"):
            fields["vdst"] = _scalar(_S_DST, 32 if masks else target.width)
        else:
            fields["vdst"] = _vector(_DST, target.width)
        scalar_dst = 44 if "S_MOVREL" in key.name else _S_DST
        fields["sdst"] = _scalar(scalar_dst, target.width if form.startswith("SOP") else 32)
        words = self.document.encode(key, **fields)
        return Judged(
            key.name, form, variant, text, sources, target, words, neg, neg_hi, abs, opsel,
            opsel_hi, clamp, omod=omod,
        )  # fmt: skip


def _byte_choices(name: str) -> int:
    """Return the bits of op_sel that choose a byte or a half in conversions of 8-bit floats."""
    if "CVT_PK_F32" in name:
        return 1
    if "CVT_F32" in name:
        return 3
    return 0xC if "SR" in name else 8


class _Program:
    """The code around cases, see tests/support/amd/isa/gfx_cases.py."""

    def __init__(self, document: Document) -> None:
        self.ins, self.gfx12 = document.ins, document.target == "gfx12"
        self.parts: list[bytes] = []

    def add(self, name: str, *operands: Any, **fields: Any) -> None:
        maker = getattr(self.ins, name)
        self.parts.append(maker(*operands, **fields).to_bytes())

    def _sum(self, base: int, addend: Any) -> None:
        from tinygrad.renderer.amd.dsl import s

        first, second = ("s_add_co_u32", "s_add_co_ci_u32") if self.gfx12 else (
            "s_add_u32", "s_addc_u32")  # fmt: skip
        self.add(first, s[base], s[base], addend)
        self.add(second, s[base + 1], s[base + 1], 0)

    def _load(self, register: int, offset: int) -> None:
        from tinygrad.renderer.amd.dsl import s, v

        place, where = ("vaddr", "ioffset") if self.gfx12 else ("addr", "offset")
        fields = {
            "vdst": v[register : register + 3],
            place: self._address(),
            "saddr": s[0:1],
            where: offset,
        }
        self.add("global_load_b128", **fields)

    def _address(self) -> Any:
        """v1: an offset of 32 bits, for which the assembler of gfx12 wants two registers."""
        return _vector(1, 64 if self.gfx12 else 32)

    def _store(self, register: int, offset: int) -> None:
        from tinygrad.renderer.amd.dsl import s, v

        data, place, where = (
            ("vsrc", "vaddr", "ioffset") if self.gfx12 else ("data", "addr", "offset")
        )
        fields = {
            data: v[register : register + 3],
            place: self._address(),
            "saddr": s[2:3],
            where: offset,
        }
        self.add("global_store_b128", **fields)

    def of(self, cases: Sequence[Case]) -> bytes:
        """Return the program."""
        from tinygrad.renderer.amd.dsl import s, ttmp, v

        if self.gfx12:
            self.add("s_mov_b32", s[4], ttmp[9])
        for base, size in ((0, BLOCK), (2, OUT_BLOCK)):
            self.add("s_mul_i32", s[5], s[4], len(cases) * size)
            self._sum(base, s[5])
        self.add("v_lshlrev_b32_e32", v[1], 4, v[0])
        for case in cases:
            self._case(case)
            for base, size in ((0, BLOCK), (2, OUT_BLOCK)):
                self._sum(base, size)
        self.add("s_endpgm")
        return b"".join(self.parts)

    def _case(self, case: Case) -> None:
        from tinygrad.renderer.amd.dsl import EXEC_LO, M0, VCC_LO, s, v

        where = "ioffset" if self.gfx12 else "offset"
        self.add("s_load_b512", sdata=s[40:55], sbase=s[0:1], **{where: 128 * 12})
        for quad in range(3):
            self._load(8 + 4 * quad, 512 * quad)
        for name in ("s_wait_kmcnt", "s_wait_loadcnt") if self.gfx12 else ("s_waitcnt",):
            self.add(name, 0)
        self.add("s_mov_b32", VCC_LO, s[48])
        self.add("s_mov_b32", M0, s[51])
        self.add("s_cmp_lg_u32", s[50], 0)
        self.add("s_mov_b32", EXEC_LO, s[49])
        self.parts.append(b"".join(word.to_bytes(4, "little") for word in case.words))
        self.add("s_mov_b32", s[48], VCC_LO)
        self.add("s_mov_b32", s[49], EXEC_LO)
        self.add("s_cselect_b32", s[50], 1, 0)
        self.add("s_mov_b32", EXEC_LO, -1)
        for quad in range(3):
            self._store(8 + 4 * quad, 512 * quad)
        for quad in range(3):
            for number in range(4):
                self.add("v_mov_b32_e32", v[20 + number], s[40 + 4 * quad + number])
            self._store(20, 512 * (3 + quad))
