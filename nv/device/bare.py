"""An NVIDIA GPU without a kernel driver, as a device: `pci:` names and `virtual:<chip>+gsp`."""

from __future__ import annotations

from pathlib import Path

from ugpu.hcq.find.registry import Attachment
from ugpu.hcq.state.memory import Placement
from ugpu.nv.device.device import NvDevice
from ugpu.nv.device.driver import NvDriver, StageHook
from ugpu.nv.gsp.rm.card import open_card
from ugpu.nv.gsp.rm.gpu import GspGpu
from ugpu.nv.gsp.rm.session import GspSession
from ugpu.nv.rm.session import Session


def open_device(
    name: str,
    attachment: Attachment,
    *,
    on_stage: StageHook | None = None,
    firmware: str | Path | None = None,
) -> NvDevice:
    """Boot the GSP of the GPU behind `attachment`. The device owns its transport from now on.

    on_stage(name, seconds) is called after each stage; an exception from it ends the start.
    firmware: a folder with images, which replaces the system's and the attachment's.
    """
    card = open_card(attachment, firmware=firmware, on_stage=on_stage)
    try:
        session = GspSession(card)
    except BaseException:
        card.close()
        raise
    driver = NvDriver(
        name,
        session,
        _open_gpu,
        on_stage=on_stage,
        boot_stages=card.stages.done,
        commands=Placement.HOST,
    )
    return NvDevice(driver)


def _open_gpu(session: Session) -> GspGpu:
    assert isinstance(session, GspSession)
    return GspGpu(session)
