"""Any driver that waits by its transport's clock replays: what it reads from shared memory, written
by itself or by the device, is what it read when it was recorded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.clocks import Manual
from tests.support.pci.pcifunction import PlainFunction, PlainMemory, PlainWindow
from ugpu.hcq.transport.base import Transport
from ugpu.hcq.transport.recorded.format import Recording
from ugpu.hcq.transport.recorded.recorder import record
from ugpu.hcq.transport.recorded.replay import ReplayTransport

DRIVERS, DEVICES = range(0, 32, 8), range(64, 96, 8)  # words by who writes them
Change = tuple[int, int]  # (place, value)


class ScriptedWindow(PlainWindow):
    """Register 8 has the device make the next changes of its script, at once."""

    def write32(self, offset: int, value: int) -> None:
        super().write32(offset, value)
        function = self.function
        if offset == 8 and isinstance(function, ScriptedFunction):
            function.make(function.at_once)


class ScriptedFunction(PlainFunction):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Manual(1.0, on_sleep=self.sleep)
        self._windows[5] = ScriptedWindow(self, 5)
        self.memory = memoryview(bytearray(4096))
        self.at_once: list[list[Change]] = []
        self.later: list[list[Change]] = []

    def allocate_dma(self, size: int, *, contiguous: bool = False) -> PlainMemory:
        memory = super().allocate_dma(size, contiguous=contiguous)
        self.memory = memory.view
        return memory

    def make(self, script: list[list[Change]]) -> None:
        for place, value in script.pop(0) if script else ():
            self.memory[place] = value

    def sleep(self, seconds: float) -> None:
        """The device works while the driver sleeps."""
        self.make(self.later)


values = st.integers(1, 255)
changes = st.lists(st.tuples(st.sampled_from(DEVICES), values), max_size=3)
#: (what, for it): the driver writes; adds one to a word of its own; rings; waits for a word
operations = st.one_of(
    st.tuples(st.just("write"), st.tuples(st.sampled_from(DRIVERS), values)),
    st.tuples(st.just("count"), st.sampled_from(DRIVERS)),
    st.tuples(st.just("ring"), changes),
    st.tuples(
        st.just("wait"),
        st.tuples(st.lists(changes, max_size=3), st.sampled_from(DEVICES), values),
    ),
)


def drive(transport: Transport, program: list[tuple[str, object]]) -> list[bytes]:
    """Run the driver's side; all of memory as it saw it after each step that it may look after."""
    memory = transport.allocate_dma(4096)
    registers = transport.window(5)
    seen = []
    for what, detail in program:
        if what == "write":
            place, value = detail
            memory.view[place] = value
        elif what == "count":
            memory.view[detail] = (memory.view[detail] + 1) % 256
            seen.append(bytes(memory.view[0:32]))
        elif what == "ring":
            registers.write32(8, 1)
            seen.append(bytes(memory.view[:128]))
        else:
            _, place, value = detail
            transport.clock.wait_until(
                lambda place=place, value=value: memory.view[place] == value,
                unit="test", waiting_for="word", limit_s=100.0,
            )  # fmt: skip
            memory.view[place] = 0  # taken back, for the next time
            seen.append(bytes(memory.view[0:32]))
    registers.read32(0)
    return [*seen, bytes(memory.view[:128])]


@given(st.lists(operations, max_size=12))
def test_a_replay_shows_what_was_seen(program: list[tuple[str, object]]) -> None:
    function = ScriptedFunction()
    for what, detail in program:
        if what == "ring":
            function.at_once.append(list(detail))
        elif what == "wait":
            batches, place, value = detail
            # The word itself comes last, and only then.
            others = [[one for one in batch if one[0] != place] for batch in batches]
            function.later += [*others, [(place, value)]]
    recorder, recording = record(function)
    with recorder:
        seen = drive(recorder, program)
    with ReplayTransport(Recording.load(recording.save()), clock=Manual(1.0)) as replay:
        assert drive(replay, program) == seen
        replay.finish()
