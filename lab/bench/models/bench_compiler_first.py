"""The first call of whole models on `cpu` and a virtual Navi31: from importing to the first result,
with empty caches.

Each runs in a process of its own. Processor time includes the compiling processes, which are not
counted while they wait; compare on one processor (`taskset -c 0`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from lab.bench.models import networks
from ugpu.hcq.state.config import setting

ROOT = Path(__file__).resolve().parents[3]
HOST, VIRTUAL = "cpu", "virtual:navi31"
MODELS = {
    "ResNet-18 at 64^2": (HOST, "resnet18", 1, 3, 64, 64),
    "ResNet-18 at 224^2": (HOST, "resnet18", 1, 3, 224, 224),
    "MobileNetV2 at 64^2": (HOST, "mobilenet", 1, 3, 64, 64),
    "MobileNetV2 at 224^2": (HOST, "mobilenet", 1, 3, 224, 224),
    "UNet block, 64 of 64^2 to 128^2": (HOST, "unet_block", 1, 64, 64, 64),
    "MiniLM, 32 tokens": (HOST, "minilm", *networks.MINILM),
    "MiniLM, 128 tokens": (HOST, "minilm", 128, 384),
    "ResNet-18 at 64^2 on virtual Navi31": (VIRTUAL, "resnet18", 1, 3, 64, 64),
    "MobileNetV2 at 64^2 on virtual Navi31": (VIRTUAL, "mobilenet", 1, 3, 64, 64),
    "MiniLM, 32 tokens on virtual Navi31": (VIRTUAL, "minilm", *networks.MINILM),
}
# The children are closed for their processor time to be known; that of weights is subtracted.
CODE = """
import json, os, resource, sys, time
def spent():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
import numpy as np
from lab.bench.models import networks
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.codegen.process import behind, children
device, network = hcq.open(sys.argv[1]), getattr(networks, sys.argv[2])
shape = [int(size) for size in sys.argv[3:]]
weights = networks.Weights(lambda array: Tensor(array, device=device).realize())
given = Tensor(np.zeros(shape, np.float32), device=device).realize()
network(weights, given)
weights.restart()
clock, before = time.perf_counter(), spent()
network(weights, given).numpy()
first = time.perf_counter() - clock
children.shared().close()
begun = behind.behind()
processor = spent() - before
begun.wait()
settled = time.perf_counter() - clock
begun.close()
print(json.dumps([first, processor, settled, spent() - before]))
"""


def measure() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, arguments in MODELS.items():
        command = [sys.executable, "-c", CODE, *map(str, arguments)]
        with (
            tempfile.TemporaryDirectory() as folder,
            setting("UGPU_CACHE", folder),
            setting("UGPU_OBJECTS", ""),
            setting("UGPU_TIERS", "1"),
        ):
            said = subprocess.check_output(command, cwd=ROOT)
        names = ("first result", "first result, processor time", "all second versions ready",
                 "both versions, processor time")  # fmt: skip
        # a virtual GPU's second versions are compiled after a few launches
        known = names if arguments[0] == HOST else names[:2]
        for what, seconds in zip(known, json.loads(said), strict=False):
            rows.append({"name": f"{name}: {what}", "value": seconds, "unit": "s"})
    return rows
