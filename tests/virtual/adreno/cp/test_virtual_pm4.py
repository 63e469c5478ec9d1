"""The virtual command processor: packets written by hand, and what stops it."""

from __future__ import annotations

import pytest

from tests.virtual.adreno.kgsl_client import Client, machine_of, pkt4, pkt7

EXEC_CS, REG_TO_MEM, MEM_TO_REG, INDIRECT, MEM_WRITE = 0x33, 0x3E, 0x42, 0x3F, 0x3D
RB_2D_SRC_SOLID_C0 = 0x8C2C  # a register that anybody may write


def pair(address: int) -> tuple[int, int]:
    return address & 0xFFFFFFFF, address >> 32


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ([pkt4(RB_2D_SRC_SOLID_C0, 1)[0] ^ 1 << 27, 1], "PARITY"),
        ([pkt4(RB_2D_SRC_SOLID_C0, 1)[0] ^ 1 << 7, 1], "PARITY"),
        ([pkt7(0x10, 0)[0] ^ 1 << 23, 0], "PARITY"),
        ([pkt7(0x10, 0)[0] ^ 1 << 15, 0], "PARITY"),
        ([0x0000_0000], "OPCODE"),
        ([0xC000_1000], "OPCODE"),  # type 3: of other GPUs
        (pkt7(0x7E), "OPCODE"),
        (pkt4(0x0800, 1), "PROTECTED"),  # CP_RB_BASE
        (pkt7(0x48, 0), "PROTECTED"),  # CP_ME_INIT
        (pkt7(0x10, 0)[:1], "HANG"),  # the buffer ends in a packet
        (pkt7(0x38, 0, 0, 0), "NOT_MODELLED"),  # CP_DRAW_INDX_OFFSET
    ],
)
@pytest.mark.parametrize("chip", ["a630", "a740"])
def test_what_stops_the_processor(chip: str, words: list[int], cause: str) -> None:
    with machine_of(chip) as machine:
        client = Client(machine)
        context, _ = client.run(words)
        assert [entry.cause.name for entry in machine.log] == [cause]
        assert client.reset_status(context) == 1
        assert bool(machine.gaps) == (cause == "NOT_MODELLED")


def test_registers_go_to_memory_and_back() -> None:
    with machine_of() as machine:
        client = Client(machine)
        out = client.alloc()
        words = pkt4(RB_2D_SRC_SOLID_C0, 5, 6, 7)
        words += pkt7(REG_TO_MEM, RB_2D_SRC_SOLID_C0 | 3 << 18, *pair(out.address))
        words += pkt7(MEM_TO_REG, RB_2D_SRC_SOLID_C0 | 1 << 19, *pair(out.address + 8))
        words += pkt7(REG_TO_MEM, RB_2D_SRC_SOLID_C0 | 1 << 18, *pair(out.address + 12))
        context, _ = client.run(words)
        assert out.read(4) == [5, 6, 7, 7]
        # Another submission of the same context finds nothing of it.
        client.run(pkt7(REG_TO_MEM, RB_2D_SRC_SOLID_C0 | 1 << 18, *pair(out.address)), context)
        assert out.read() == [0] and machine.log == []


def test_indirect_buffers_nest_but_not_for_ever() -> None:
    with machine_of() as machine:
        client = Client(machine)
        out, inner = client.alloc(), client.alloc()
        body = pkt7(MEM_WRITE, *pair(out.address), 9)
        inner.write(body)
        client.run(pkt7(INDIRECT, *pair(inner.address), len(body)))
        assert out.read() == [9] and machine.log == []
        loop = pkt7(INDIRECT, *pair(inner.address), 4)
        inner.write(loop)
        client.run(loop)
        assert [entry.cause.name for entry in machine.log] == ["HANG"]


def test_a_dispatch_needs_the_state_of_its_own_submission() -> None:
    with machine_of() as machine:
        client = Client(machine)
        client.run(pkt7(EXEC_CS, 0, 1, 1, 1))
        assert any("SP_CS_CONFIG" in text for text in machine.violations)
        assert [entry.cause.name for entry in machine.log] == ["HANG"]


@pytest.mark.parametrize(("kind", "place"), [("TEX_CONST", 9), ("TEX_SAMP", 17), ("IBO", 22)])
def test_a_dispatch_of_bindless_descriptors_needs_no_table(kind: str, place: int) -> None:
    """turnip counts them in SP_CS_CONFIG (bits from 9, 17 and 22 on) and says in bits 0 to 2 that
    they are in descriptor sets."""
    for bindless in (False, True):
        with machine_of() as machine:
            config = 1 << 8 | 1 << place | 7 * bindless
            words = pkt4(0xA9BB, config) + pkt4(0xB987, 1 << 8)
            Client(machine).run(words + pkt7(EXEC_CS, 0, 1, 1, 1))
            needed = any(f"SP_CS_{kind}" in text for text in machine.violations)
            assert needed is not bindless, machine.violations


def test_gpu_read_only_memory() -> None:
    with machine_of() as machine:
        client = Client(machine)
        target = client.alloc(4096, 0x0100_0000)
        client.run(pkt7(MEM_WRITE, *pair(target.address), 1))
        assert target.read() == [0]
        assert "permission fault" in machine.log[0].text
