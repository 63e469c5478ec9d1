"""What the parts of hcq.device.core.Core use of it, and what it and they use of a driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from ugpu.hcq.work.graph import GraphState
from ugpu.hcq.work.object_kind import Loader
from ugpu.hcq.work.queue import QueueDriver

if TYPE_CHECKING:
    from ugpu.hcq.copies.transfer import Transfer
    from ugpu.hcq.disk.bundle import Evidence
    from ugpu.hcq.errors import UgpuError
    from ugpu.hcq.state.ladder import Level
    from ugpu.hcq.state.memory import Placement
    from ugpu.hcq.state.telemetry import Sensor
    from ugpu.hcq.work.buffer import Buffer
    from ugpu.hcq.work.losses import Losses
    from ugpu.hcq.work.recovery import Recovery
    from ugpu.hcq.work.timeline import Timeline


class CoreDriver(QueueDriver, Loader, Protocol):
    """What the core uses of a driver: see hcq.device.driver.Driver.

    Attributes:
        name: as users gave it to `hcq.open`.
    """

    name: str

    def make_transfer(self) -> Transfer: ...
    def allocate_memory(self, size: int, placement: Placement) -> Buffer: ...
    def is_idle_fast(self) -> bool: ...
    def flush_output(self) -> None: ...
    def poll(self) -> UgpuError | None: ...
    def diagnose(self, timeline: Timeline, value: int) -> dict[str, object]: ...
    def evidence(self, error: UgpuError) -> Evidence: ...
    def recover(self, only: Level | None = ...) -> Recovery | None: ...
    def sensors(self) -> Sequence[Sensor]: ...
    def prefetch_wake(self) -> None: ...
    def shutdown(self) -> None: ...


class CoreState(GraphState, Protocol):
    """The state of one device, as parts of the core use it.

    Attributes:
        last_failure: the failure handled by the last `reset`.
    """

    last_failure: UgpuError | None

    @property
    def driver(self) -> CoreDriver: ...
    @property
    def losses(self) -> Losses: ...
    @property
    def errors(self) -> Mapping[str, int]: ...

    def look(self) -> None: ...
    def recover(self) -> None: ...
    def fail(self, failure: UgpuError) -> None: ...
    def check_open(self) -> None: ...
    def check_alive(self) -> None: ...
    def was_reset(self, *, all_queues: bool) -> None: ...
