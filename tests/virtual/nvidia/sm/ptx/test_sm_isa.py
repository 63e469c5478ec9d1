"""An example of each instruction of the PTX ISA: it is PTX, and executed or refused by name."""

from __future__ import annotations

import pytest

from tests.support.nvidia.isa_examples import EXAMPLES, START, VARIABLES, VERSION
from tests.support.nvidia.sm.sm_run import Bench, body
from ugpu.hcq.errors import BadCodeObject, NotSupported
from ugpu.nv.code.assemble import assemble, find_library
from ugpu.virtual.nvidia.sm.ptx.lexer import tokens_of
from ugpu.virtual.nvidia.sm.ptx.parser import parse
from ugpu.virtual.nvidia.sm.translator.translate import prepare, translate
from ugpu.virtual.nvidia.sm_contract import SmEnding

# Products of warp groups hold registers, which other instructions would have to wait for.
_ALONE = ("wgmma.mma_async",)


def _lines(target: str) -> list[tuple[bool, str]]:
    """Return the examples of a target, and whether each is refused."""
    lines = EXAMPLES[target].strip().splitlines()
    return [(line.startswith("!"), line.removeprefix("! ")) for line in lines]


def _module(target: str, *kernels: str) -> str:
    head = f".version {VERSION}\n.target {target}\n.address_size 64\n{VARIABLES}"
    return head + "".join(
        body(2, START + text).replace("entry k(", f"entry k{n}(") for n, text in enumerate(kernels)
    )


@pytest.mark.parametrize("target", EXAMPLES)
def test_each_example_is_ptx(target: str) -> None:
    if find_library() is None:
        pytest.skip("needs the nvidia-nvjitlink package")
    text = _module(target, *(line + ";" for _, line in _lines(target)))
    try:
        assert assemble(text.encode(), target)
    except BadCodeObject as error:
        if ".version" in str(error):
            pytest.skip(f"needs an assembler that knows PTX ISA {VERSION}")
        raise


@pytest.mark.parametrize("target", EXAMPLES)
def test_plain_instructions_are_read_as_others_are(target: str) -> None:
    """A comment before its end makes an instruction one that is read token by token."""
    for line in (line for no, line in _lines(target) if not no):
        text = _module(target, line + ";")
        assert any(token.kind == "plain" for token in tokens_of(text))
        assert repr(parse(text)) == repr(parse(text.replace(";", "/**/;")))


@pytest.mark.parametrize("target", EXAMPLES)
def test_what_is_refused_is_named_with_its_line(target: str) -> None:
    for line in (line for no, line in _lines(target) if no):
        with pytest.raises(NotSupported, match=r"PTX line \d+"):
            flat, places = prepare(parse(_module(target, line + ";")), "k0")
            translate(flat, places, True, True)
            raise AssertionError(f"{line} is executed: the table is out of date")


@pytest.mark.parametrize("target", EXAMPLES)
def test_all_others_are_compiled(target: str) -> None:
    """Behind a branch that no lane takes: what each does has tests of its own."""
    lines = [line for no, line in _lines(target) if not no and not line.startswith(_ALONE)]
    apart = [line for no, line in _lines(target) if not no and line.startswith(_ALONE)]
    for part in ([*lines], *([line] for line in apart)):
        text = "setp.ne.u64 %p9, %rd1, 0;\n@!%p9 bra over;\n" + "".join(
            line + ";\n" for line in part
        )
        outcome = Bench().launch(
            _module(target, text + "over:\n"), 0, 0, entry="k0", target=target, shared=2048
        )
        assert outcome.ending is SmEnding.DONE
