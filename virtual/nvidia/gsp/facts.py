"""How each chip boots, and where registers differ between chips: facts, no behaviour.

Sources: Linux 7.3.4 drivers/gpu/drm/nouveau/nvkm/{engine/device,subdev/gsp,subdev/fb,subdev/fsp,
subdev/instmem,falcon} and drivers/gpu/nova-core/{regs.rs,fb/hal,gsp/hal,fsp/hal};
open-gpu-kernel-modules 570.144 src/common/inc/swref/published.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ugpu.hcq.errors import NotSupported

Way = Literal["fwsec", "booter", "fsp"]


@dataclass(frozen=True)
class BootFacts:
    """One chip.

    identity: architecture and implementation as in BOOT_42. way: "fwsec" (FWSEC and booter),
    "booter" (booter alone) or "fsp" (chain of trust). pio: falcons are loaded word by word; else by
    DMA, and a boot ROM verifies programs. folder: of the firmware files. image: folder of the GSP's
    image. signature: suffix of the image's signature section. graphics_class: its 3D class.
    cot: version of the chain-of-trust message. descriptor: version of FWSEC's. boot_done: register
    that reads 0xff once power-on has finished; 0 for the two of Turing to Ada. window: register of
    the PRAMIN window. mirror: of configuration space in BAR0. fused: whether a version of the
    programs is burnt. booter: number of the booters, and bytes of their signature. table_size:
    vectors of MSI-X; 0 if the chip's boards have MSI only.
    """

    name: str
    identity: int
    way: Way
    folder: str
    image: str
    signature: str
    graphics_class: int
    pio: bool = False
    cot: int = 0
    descriptor: int = 3
    boot_done: int = 0
    fb_size_by_scale: bool = False
    display_fuse: int = 0x820C04
    flush: tuple[int, ...] = (0x100C10, 0x100C40)
    window: int = 0x1700
    mirror: int = 0x88000
    libos: int = 3
    table_size: int = 0
    fused: bool = True
    booter: tuple[int, int] = (3, 0x180)

    @property
    def boot42(self) -> int:
        """PMC_BOOT_42: architecture 29:24, implementation 23:20, revision a1."""
        return self.identity << 20 | 0xA1 << 12

    @property
    def boot0(self) -> int:
        """PMC_BOOT_0: the same bits, revision 7:0."""
        return self.identity << 20 | 0xA1


_TU102 = BootFacts(
    "tu102", 0x162, "fwsec", "tu102", "tu102", "tu10x", 0xC597, pio=True, descriptor=2,
    fb_size_by_scale=True, display_fuse=0x021C04, libos=2, booter=(0xD, 16),
)  # fmt: skip
CHIPS = {
    facts.name: facts
    for facts in (
        BootFacts("ad102", 0x192, "fwsec", "ad102", "ga102", "ad10x", 0xC997),
        BootFacts("ga102", 0x172, "fwsec", "ga102", "ga102", "ga10x", 0xC797),
        _TU102,
        replace(_TU102, name="tu116", identity=0x168, folder="tu116", signature="tu11x"),
        BootFacts(
            "ga100", 0x170, "booter", "ga100", "tu102", "ga100", 0xC697, pio=True, descriptor=2,
            fb_size_by_scale=True, libos=2, fused=False, table_size=6,
        ),
        BootFacts(
            "gh100", 0x180, "fsp", "gh100", "ga102", "gh100", 0xCB97, cot=1, boot_done=0x200BC,
            flush=(0x100A34, 0x100A38), window=0x10FD40, mirror=0x92000,
            table_size=9,
        ),
        BootFacts(
            "gb202", 0x1B2, "fsp", "gb202", "ga102", "gb20x", 0xCE97, cot=2, boot_done=0xAD00BC,
            flush=(0x8A1D58, 0x8A1D5C), window=0x10FD40, mirror=0x92000,
        ),
    )
}  # fmt: skip


def boot_facts(name: str) -> BootFacts:
    """Return the facts of a chip. NotSupported for a chip without a register-level model."""
    if name not in CHIPS:
        raise NotSupported(f"register-level NVIDIA models: {', '.join(CHIPS)}; not {name!r}")
    return CHIPS[name]
