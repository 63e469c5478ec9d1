"""The driver's classes for GFX 11.0 boards."""

from __future__ import annotations

from am import boot, mqd
from am.clocks import Clocks
from am.generations.gfx11 import cleaner, proof
from am.generations.record import Generation
from am.gfx import Gfx
from am.gmc import Gmc
from am.ih import Ih
from am.nbio import Nbio
from am.pagetable import Gfx11Format
from am.psp import Psp
from am.queue import ComputeQueue, CopyQueue
from am.sdma import Engine
from am.smu import Smu
from am.units import UnitClasses

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
