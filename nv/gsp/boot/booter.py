"""Steps "gsp-reset" and "booter": arguments for the GSP; SEC2 loads and starts its firmware."""

from __future__ import annotations

from ugpu.nv.gsp.boot.fwsec import fuse_version
from ugpu.nv.gsp.boot.start import Start
from ugpu.nv.gsp.chip.falcon import Program
from ugpu.nv.gsp.chip.ports import BLOCK, Part, PortProgram
from ugpu.nv.gsp.images.containers import HeavySecure
from ugpu.nv.gsp.layout.memory import Pages

RUN_LIMIT_S = 10.0  # TIMEOUT: our choice; it copies and checks 64 MB. nouveau: 2 s for the halt


def reset_gsp(start: Start) -> None:
    """Reset the GSP to its RISC-V core, with the arguments' address in its mailboxes. The core does
    not run yet: booter starts it."""
    start.gsp.reset_to_riscv()
    set_arguments(start)


def set_arguments(start: Start) -> None:
    """Write the address of libos's list of regions into the GSP's mailboxes."""
    start.gsp.set_mailboxes(start.arguments.address)


def place_booter(start: Start, booter: HeavySecure) -> Pages:
    """Copy a booter into memory, with the signature that fits the chip."""
    fuse = 0
    if start.boot.fuses:
        fuse = fuse_version(start.chip, booter.engines, booter.ucode).bit_length()
    image = booter.signed(fuse)
    return start.memory.take(len(image), image)


def _by_ports(booter: HeavySecure, pages: Pages) -> PortProgram:
    """Return how a booter is written through ports: plain code, then the secure one, data."""
    image = bytes(pages.view[: len(booter.data)])

    def cut(place: tuple[int, int]) -> bytes:
        return image[place[0] : sum(place)]

    plain = Part(0, booter.code[0], False, cut(booter.code))
    after = -(-len(plain.content) // BLOCK) * BLOCK
    secure = Part(after, booter.application[0], True, cut(booter.application))
    return PortProgram(booter.name, (plain, secure), cut(booter.contents), 0)


def run_booter(start: Start, booter: HeavySecure, pages: Pages, mailboxes: int) -> None:
    """Run a booter on SEC2; FirmwareRejected with its error."""
    program = _by_dma(booter, pages) if start.boot.dma else _by_ports(booter, pages)
    start.sec2.run(program, mailboxes, RUN_LIMIT_S)


def _by_dma(booter: HeavySecure, pages: Pages) -> Program:
    offset, size = booter.application
    return Program(
        name=booter.name,
        address=pages.address,
        code=(offset, size),
        start=offset,
        data=booter.contents,
        parameters=booter.parameters_at,
        engines=booter.engines,
        ucode=booter.ucode,
    )


def load_firmware(start: Start) -> None:
    """Let booter verify the GSP's image, copy it into the protected region, and start it."""
    booter = start.files.load
    assert booter is not None
    pages = place_booter(start, booter)
    start.running = True  # from here on the GSP may access memory
    run_booter(start, booter, pages, (start.saved or start.metadata).address)
    start.memory.close([pages])
