"""The decoder against LLVM's own listing of every instruction of the corpus."""

from __future__ import annotations

import pytest

from tests.support.amd.isa.gfx_corpus import Line, compile_ir, corpus
from ugpu.virtual.amd.isa.decoder.decode import decode, decode_all
from ugpu.virtual.amd.isa.decoder.disassembly import text

# Immediates that LLVM spells out in words, targets that its listing leaves out: mnemonic only.
IN_WORDS = ("s_delay_alu", "s_waitcnt_depctr", "s_getreg", "s_sendmsg", "ds_swizzle", "s_cbranch")
GROUPS = 8


def _differs(code: bytes, line: Line) -> str | None:
    found = decode(code, line.pc)
    assert found.words == line.words
    assert found.pc == line.pc
    ours, theirs = text(found), line.text
    if theirs.startswith((*IN_WORDS, "s_branch")) or "@" in theirs:
        ours, theirs = ours.split()[0], theirs.split()[0]
    return None if ours == theirs else f"{theirs}   decoded as   {ours}"


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_listed_instruction_decodes_to_its_text(group: int) -> None:
    wrong, count = [], 0
    for name in list(corpus())[group::GROUPS]:
        compiled = compile_ir(corpus()[name])
        for line in compiled.listing:
            count += 1
            difference = _differs(compiled.text, line)
            if difference:
                wrong.append(f"{name}: {difference}")
    assert count > 500
    assert not wrong, "\n".join(wrong[:20])


def test_the_corpus_is_broad() -> None:
    mnemonics = {
        line.text.split()[0] for ir in corpus().values() for line in compile_ir(ir).listing
    }
    assert len(mnemonics) > 500


def test_branches_land_on_instructions() -> None:
    branches = 0
    for name in ("uniform loop", "divergent loop", "branches", "udiv i64", "sin f32"):
        compiled = compile_ir(corpus()[name])
        starts = {line.pc for line in compiled.listing}
        for instruction in decode_all(compiled.text):
            if instruction.branch_target is not None:
                branches += 1
                assert instruction.branch_target in starts
    assert branches >= 8


def test_a_code_section_decodes_from_end_to_end() -> None:
    compiled = compile_ir(corpus()["call"])
    found = decode_all(compiled.text)
    assert sum(instruction.size for instruction in found) == len(compiled.text)
    assert [one.next_pc for one in found[:-1]] == [other.pc for other in found[1:]]
