"""The driver's classes for GFX 11.0 boards."""

from __future__ import annotations

from ugpu.am.boot import boot
from ugpu.am.boot.units import UnitClasses
from ugpu.am.generations.gfx11 import cleaner, proof
from ugpu.am.generations.record import Generation
from ugpu.am.packets import mqd
from ugpu.am.packets.page_table import Gfx11Format
from ugpu.am.packets.sdma import Engine
from ugpu.am.units.clocks import Clocks
from ugpu.am.units.gfx import Gfx
from ugpu.am.units.gmc import Gmc
from ugpu.am.units.ih import Ih
from ugpu.am.units.nbio import Nbio
from ugpu.am.units.psp.psp import Psp
from ugpu.am.units.smu.smu import Smu
from ugpu.am.work.queue import ComputeQueue, CopyQueue

GENERATION = Generation(
    units=UnitClasses(
        page_format=Gfx11Format,
        nbio=Nbio,
        gmc=Gmc,
        psp=Psp,
        smu=Smu,
        ih=Ih,
        gfx=Gfx,
        clocks=Clocks,
        copy_engine=Engine,
        describe_queue=mqd.build,
    ),
    compute_queue=ComputeQueue,
    copy_queue=CopyQueue,
    describe_queue=mqd.build,
    cold_boot=boot.cold_boot,
    warm_attach=boot.warm_attach,
    proof=proof.KERNEL,
    cleaner=cleaner.kernel,
)
