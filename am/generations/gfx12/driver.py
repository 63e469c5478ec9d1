"""The driver's classes for GFX 12.0 boards."""

from __future__ import annotations

from functools import partial

from ugpu.am.boot import boot
from ugpu.am.boot.units import UnitClasses
from ugpu.am.generations.gfx12 import cleaner, proof
from ugpu.am.generations.gfx12.units import Clocks12, CopyQueue7, Engine7, Gfx12
from ugpu.am.generations.record import Generation
from ugpu.am.packets import mqd
from ugpu.am.packets.page_table import Gfx12Format
from ugpu.am.units.gmc import Gmc
from ugpu.am.units.ih import Ih
from ugpu.am.units.nbio import Nbio
from ugpu.am.units.psp.psp import Psp
from ugpu.am.units.smu.smu import Smu
from ugpu.am.work.queue import ComputeQueue

_DESCRIBE = partial(mqd.build, version="v12")

GENERATION = Generation(
    units=UnitClasses(
        page_format=Gfx12Format,
        nbio=Nbio,
        gmc=Gmc,
        psp=Psp,
        smu=Smu,
        ih=Ih,
        gfx=Gfx12,
        clocks=Clocks12,
        copy_engine=Engine7,
        describe_queue=_DESCRIBE,
    ),
    compute_queue=ComputeQueue,
    copy_queue=CopyQueue7,
    describe_queue=_DESCRIBE,
    cold_boot=boot.cold_boot,
    warm_attach=boot.warm_attach,
    proof=proof.KERNEL,
    cleaner=cleaner.kernel,
)
