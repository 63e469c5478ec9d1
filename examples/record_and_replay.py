"""Record what the driver does to a card while it boots, and replay it without the card.

The recording holds every register access and DMA buffer. `ugpu record show|compare` reads it.

usage: python examples/record_and_replay.py
"""

import tempfile
from pathlib import Path

import ugpu

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "boot.rec"
    with ugpu.open("virtual:navi31", record=path) as gpu:
        identity = gpu.info()
    print(f"recorded {path.stat().st_size / 1e6:.1f} MB: boot and close of {gpu.name}")

    # The driver runs again; every read is answered from the recording. An access that differs
    # raises an error which names the register and the position.
    with ugpu.open(f"recording:{path}") as again:
        assert again.info()["chip"] == identity["chip"]
        print(f"replayed: {again.info()['chip']}, firmware and registers as recorded")
