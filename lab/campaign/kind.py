"""What a fault kind is: where it strikes, how it is planted, what must follow."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.campaign.stands.stand import Stand

Act = Callable[[Any], object]  # takes the stand; each kind knows the type of its own


class Layer(enum.Enum):
    """Where the cause lies."""

    HARDWARE = "hardware"
    FIRMWARE = "firmware"
    LINK = "link"
    MEMORY = "memory"
    POWER = "power"
    HOST = "host"


class Recovery(enum.Enum):
    """What brings the device back, once the cause is gone. Value: for docs/faults.md."""

    NONE = "none needed"  # the driver copes: the work ends right
    GO_ON = "goes on"  # the request failed, the device works
    RESET = "device.reset()"
    REOPEN = "close and open"


def nothing(_stand: object) -> None:
    """Nothing is to be done."""


def _always(_stand: object) -> bool:
    """The error itself shows that the fault has struck."""
    return True


@dataclass(frozen=True)
class Kind:
    """One cause. Names are unique.

    planted: how, for docs/faults.md. stages: at which it can occur. error: the class that must be
    raised; None where the driver copes. errors: by stage, where it differs. facts: that the error
    must carry. state: "unit: name" as am.failure.states names it after the failure. remedy: words
    that the remedy must have. cure: takes the cause away; recovery: what the user does then.
    provoke: what meets the fault; None: what the stage does. lost: the content of DEVICE memory is
    lost, and said to be. objections: of the model, that the fault itself causes. struck: whether
    the fault has struck, for those that the driver copes with. variants: cases at a stage, which
    differ by `stand.variant` and their seed. may_cope: some of them do no harm. elsewhere: by
    device, the fields that differ there.
    """

    name: str
    layer: Layer
    planted: str
    devices: tuple[str, ...]
    stages: tuple[str, ...]
    plant: Act
    error: type[BaseException] | None
    source: str
    recovery: Recovery = Recovery.RESET
    errors: Mapping[str, type[BaseException] | None] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)
    state: str = ""
    remedy: str = ""
    cure: Act = nothing
    provoke: Act | None = None
    lost: bool = False
    objections: tuple[str, ...] = ()
    struck: Callable[[Any], bool] = _always
    variants: int | Mapping[str, int] = 1
    may_cope: bool = False
    elsewhere: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def on(self, device: str) -> Kind:
        """Return the kind as it is on a device."""
        return replace(self, **self.elsewhere.get(device, {}))

    def count(self, stage: str) -> int:
        """How many cases there are at a stage."""
        return self.variants if isinstance(self.variants, int) else self.variants[stage]

    def expected(self, stage: str) -> type[BaseException] | None:
        """The error at a stage."""
        return self.errors.get(stage, self.error)


@dataclass(frozen=True)
class Case:
    """One kind at one stage of one device."""

    kind: str
    stage: str
    device: str
    variant: int = 0

    def __str__(self) -> str:
        more = f" / {self.variant}" if self.variant else ""
        return f"{self.kind} / {self.stage} / {self.device}{more}"


@dataclass
class Result:
    """What a case gave. failed: check -> what was wrong; empty when all is well."""

    case: Case
    failed: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""

    @property
    def passed(self) -> bool:
        return not self.failed


def cases_of(kinds: list[Kind]) -> list[Case]:
    """All cases, in the order of the table."""
    return [
        Case(kind.name, stage, device, variant)
        for kind in kinds
        for device in kind.devices
        for stage in kind.stages
        for variant in range(kind.count(stage))
    ]


StandFactory = Callable[[int], "Stand"]
