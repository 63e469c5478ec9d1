"""A register-level NVIDIA card as a stand: our driver boots its GSP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lab.campaign.stands.nvidia import NvStand
from lab.campaign.stands.stand import LONG_S, hasten
from ugpu import hcq
from ugpu.virtual.nvidia.gsp.gpu import build_card
from ugpu.virtual.nvidia.gsp.options import CardOptions

# The steps of a start with FWSEC and booter, and with FSP; "power" is before the first.
FWSEC_STEPS = (
    "power", "firmware files", "gfw-boot", "vbios", "layout", "frts", "gsp-reset", "booter",
    "riscv", "init-done", "static-info", "open",
)  # fmt: skip
FSP_STEPS = (
    "power", "firmware files", "gfw-boot", "layout", "chain-of-trust", "lockdown", "riscv",
    "init-done", "static-info", "open",
)  # fmt: skip
_STEPS = {
    **dict.fromkeys(("gh100", "gb202"), FSP_STEPS),
    "ga100": tuple(step for step in FWSEC_STEPS if step != "frts"),
}


class GspStand(NvStand):
    """A card, and our driver on it. card: the model. stranded: the fault that was planted keeps the
    driver from handing the card back; the next start resets it."""

    stranded = False

    def __init__(self, chip: str, seed: int) -> None:
        self.boot_stages = _STEPS.get(chip, FWSEC_STEPS)
        super().__init__(chip, seed)

    def _switch_on(self) -> None:
        self.card = build_card(self._chip, CardOptions(memory=1 << 30, seed=self.seed))
        self.machine = self.card.machine
        hasten(self.card.clock)
        self.clean = self._state()

    def open(self, stage: str = "", plant: Callable[[], object] | None = None) -> None:
        """See Stand. A stage begins when the one before it has ended."""
        before, self.stranded = "", False
        if plant is not None and stage == "power":
            plant()
        elif plant is not None:
            before = self.boot_stages[self.boot_stages.index(stage) - 1]

        def ended(name: str, seconds: float) -> None:
            if plant is not None and name == before:
                plant()

        self.device: Any = hcq.open(f"virtual:{self._chip}+gsp", chip=self.card, on_stage=ended)
        self._opened = True
        self.device.limit_s = LONG_S

    def do(self, stage: str, plant: Callable[[], object]) -> None:
        """See Stand. The host cuts the power between "suspend" and "resume"."""
        if stage not in ("suspend", "resume"):
            super().do(stage, plant)
            return
        if stage == "suspend":
            plant()
        self.device.suspend()
        self.card.power_cycle()
        if stage == "resume":
            plant()
        self.device.resume()

    @property
    def memory_lost(self) -> bool:
        return bool(self.device._driver.vram_lost)

    def _state(self) -> dict[str, int]:
        """What a closed device leaves as it was."""
        card = self.card
        wpr2 = card.wpr.up and not card.keeps_wpr2
        return {"wpr2": wpr2, "core": card.gsp.active, "master": card.config.bus_master}

    def left(self) -> str:
        if self.card.lost or self.card.dark:
            return ""
        found = self._state()
        if self.stranded:
            return "" if not found["master"] else "the card may access host memory"
        return "" if found == self.clean else f"{found}, at first {self.clean}"

    def stop(self) -> None:
        self.card.close()

    def objections(self) -> list[str]:
        return list(self.card.violations)

    def again(self) -> None:
        """Put another card into the slot: this one has a lasting defect."""
        self.card.close()
        self._switch_on()
