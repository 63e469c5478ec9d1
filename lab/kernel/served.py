"""A virtual card behind a vfio-user server of this process, in a slot of the guest."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lab.kernel.lab import Case, Run
from ugpu.virtual.serve.model import DeviceModel
from ugpu.virtual.serve.server import Server

END_LIMIT_S = 10
# TIMEOUT: of QEMU for an access. Past its own 5 s, on a host where the model gets no processor,
# all later reads give ones.
ANSWER_LIMIT_MS = 60_000


@contextmanager
def serving(socket: Path, model: DeviceModel) -> Iterator[None]:
    """Serve a model, which stays the caller's."""
    server = Server(socket, model)
    thread = threading.Thread(target=server.run, name="server", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.stop()
        thread.join(END_LIMIT_S)


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Write firmware under the names that a driver uses."""
    for name, image in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(image)


def slot(socket: Path, *, sibling: bool = False) -> list[str]:
    """Return QEMU's arguments for a root port with the card behind `socket`. sibling: a second
    function is beside it."""
    card = {
        "driver": "vfio-user-pci", "id": "gpu0", "bus": "port0", "addr": "0.0", "rombar": 0,
        "multifunction": sibling, "socket": {"type": "unix", "path": str(socket)},
        "x-msg-timeout": ANSWER_LIMIT_MS,
    }  # fmt: skip
    devices = [
        # At 16 GT/s QEMU's port never reports its link as up again after a reset of its bus.
        *("-device", "pcie-root-port,id=port0,chassis=1,slot=1,x-speed=5"),
        *("-device", json.dumps(card)),
    ]
    if sibling:
        devices += ["-device", "pci-testdev,bus=port0,addr=0.1"]
    return devices


def judged(run: Run, violations: Sequence[str], allowed: Sequence[str] = ()) -> Run:
    """Add what a client did to the card that a board would punish silently, as a case of the run.
    allowed: words of violations that are no failure."""
    if run.lack:
        return run
    wrong = [text for text in violations if not any(words in text for words in allowed)]
    verdict = "failed" if wrong else "passed"
    case = Case("card.nothing_a_board_would_punish", verdict, 0.0, "\n".join(wrong))
    return replace(run, cases=[*run.cases, case])
