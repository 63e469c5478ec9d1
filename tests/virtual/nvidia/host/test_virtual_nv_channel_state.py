"""The state of a channel, by itself: engine objects are bound while others work."""

from __future__ import annotations

from typing import Any, cast

from ugpu.virtual.nvidia.host.state import ChannelState


class Binding:
    """An engine during whose drain the resource manager binds another."""

    def __init__(self, state: ChannelState) -> None:
        self.state = state

    def drain(self) -> None:
        engines = cast("dict[int, Any]", self.state.engines)
        engines[len(engines)] = self


def test_an_engine_is_bound_while_others_are_drained() -> None:
    none: Any = None  # neither GPU nor address space takes part
    state = ChannelState(none, 0, 0xC56F, none)
    Binding(state).drain()
    state.drain()
    assert len(state.engines) == 2, "the second one had no work when the drain began"
