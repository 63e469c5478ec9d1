"""Register writes that travel together, and how many at most."""

from __future__ import annotations

from typing import Any, cast

from ugpu.usbgpu.bridge.window import Combiner


class Written:
    """A bridge that keeps what is written to memory space."""

    def __init__(self) -> None:
        self.writes: list[tuple[int, bytes]] = []

    def write_memory(self, address: int, data: bytes | bytearray | memoryview) -> None:
        self.writes.append((address, bytes(data)))


def test_no_more_than_a_page_is_held_back() -> None:
    bridge = Written()
    combiner = Combiner(cast(Any, bridge), lambda: None)
    with combiner.batch():
        for number in range(1030):
            combiner.write(0x1000 + 4 * number, number.to_bytes(4, "little"))
        assert [len(data) for _, data in bridge.writes] == [4096]
        combiner.write(0x9000, b"next")
    assert [(address, len(data)) for address, data in bridge.writes] == [
        (0x1000, 4096), (0x2000, 24), (0x9000, 4),
    ]  # fmt: skip
    whole = b"".join(number.to_bytes(4, "little") for number in range(1030))
    assert bridge.writes[0][1] + bridge.writes[1][1] == whole
