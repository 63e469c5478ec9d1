"""Each fault of a board during the start and after it is named with its step, what was expected and
what was found, within its limit; once the cause is gone, the next start works."""

from __future__ import annotations

from functools import partial

import pytest

from lab.campaign.kind import Case, cases_of
from lab.campaign.kinds.gsp import KINDS
from lab.campaign.run import run
from lab.campaign.stands.devices import STANDS
from tests.nv.gsp.test_gsp_boot import booted, powered
from ugpu.hcq.errors import FirmwareError
from ugpu.virtual.nvidia.gsp.faults import CardFault

_BY_NAME = {kind.name: kind for kind in KINDS}
# Their limits are the longest: 20 s and more, of a clock that runs 20 times as fast.
_SLOW = (
    "gsp_silent", "init_never", "init_lockdown", "rpc_lost", "reply_number", "reply_other",
    "gsp_dies", "mask_never", "lockdown_never",
)  # fmt: skip


def case_of(case: Case) -> object:
    slow = case.kind.split()[0] in _SLOW
    return pytest.param(case, marks=[pytest.mark.slow] if slow else [], id=str(case))


@pytest.mark.parametrize("case", [case_of(case) for case in cases_of(KINDS)])
def test_a_fault_is_named_and_recovered(case: Case) -> None:
    stand = partial(STANDS[case.device], 1)
    result = run(case, _BY_NAME[case.kind], stand, leaks=False)
    assert result.failed == {}, result.error


def test_every_fault_of_the_model_is_in_the_campaign() -> None:
    planted = {kind.name.split()[0] for kind in KINDS}
    assert planted == {fault.name.lower() for fault in CardFault}
    assert len(planted) >= 60


@pytest.mark.parametrize("fault", [CardFault.INIT_FAILS, CardFault.RPC_TIMES_OUT])
def test_firmware_that_answers_is_asked_to_leave_before_its_reset(fault: CardFault) -> None:
    with powered() as card:
        card.inject_card(fault)
        with pytest.raises(FirmwareError):
            booted(card)
        assert card.violations == [] and not card.wpr.touches(0, card.memory_size)
        assert any("47" in call or "UNLOADING" in call for call in card.calls)
        booted(card).end(clean=True)
