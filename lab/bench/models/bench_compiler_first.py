"""The first call of whole models on `cpu`, a virtual Navi31 and a virtual GH100: from importing to
the first result, with empty caches.

Each runs in a process of its own. Processor time includes the compiling processes, which are not
counted while they wait; compare on one processor (`taskset -c 0`). Beside `cpu`'s stands what
onnxruntime takes to load the exported model and to run it once, where it, PyTorch, onnx and
onnxscript are installed; beside a virtual GPU's, `cpu`'s processor time in this run.
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
HOST, VIRTUAL = "cpu", ("virtual:navi31", "virtual:gh100")
MODELS = {
    "ResNet-18 at 64^2": ("resnet18", 1, 3, 64, 64),
    "ResNet-18 at 224^2": ("resnet18", 1, 3, 224, 224),
    "MobileNetV2 at 64^2": ("mobilenet", 1, 3, 64, 64),
    "MobileNetV2 at 224^2": ("mobilenet", 1, 3, 224, 224),
    "UNet block, 64 of 64^2 to 128^2": ("unet_block", 1, 64, 64, 64),
    "MiniLM, 32 tokens": ("minilm", *networks.MINILM),
    "MiniLM, 128 tokens": ("minilm", 128, 384),
}
SMALL = ("ResNet-18 at 64^2", "MobileNetV2 at 64^2", "MiniLM, 32 tokens")  # also on virtual GPUs
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

# Loading of the libraries and the export are not counted, as imports are not in ours.
PEER = """
import json, sys, time
import numpy as np
from lab.bench.models import bench_compiler_models, networks
from ugpu import hcq
shape = [int(size) for size in sys.argv[2:]]
with hcq.open("cpu") as device:
    models = bench_compiler_models._Models(device)
    if models.torch is None or models.runtime is None or not models.exports:
        sys.exit(3)
    array, weights = np.zeros(shape, np.float32), networks.Weights(models.tensor)
    getattr(networks, sys.argv[1])(weights, models.tensor(array))
    module = models.module(getattr(models.there, sys.argv[1]), weights)
    exported = models.exported(module, [models.torch.from_numpy(array)])
before = time.process_time()
session = models.started(exported)
session.run(None, {session.get_inputs()[0].name: array})
print(json.dumps(time.process_time() - before))
"""
ABSENT = 3  # the exit code without the libraries


def _first(device: str, model: str) -> list[float]:
    """Seconds of the first result, its processor time, and the same of all second versions."""
    command = [sys.executable, "-c", CODE, device, *map(str, MODELS[model])]
    with (
        tempfile.TemporaryDirectory() as folder,
        setting("UGPU_CACHE", folder),
        setting("UGPU_OBJECTS", ""),
        setting("UGPU_TIERS", "1"),
    ):
        seconds: list[float] = json.loads(subprocess.check_output(command, cwd=ROOT))
        return seconds


def _peer(model: str) -> float | None:
    command = [sys.executable, "-c", PEER, *map(str, MODELS[model])]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if done.returncode == ABSENT:
        return None
    done.check_returncode()
    return float(json.loads(done.stdout))


def measure() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for model in MODELS:
        first, processor, settled, both = _first(HOST, model)
        row: dict[str, object] = {"name": f"{model}: first result, processor time"}
        row |= {"value": processor, "unit": "s"}
        peer = _peer(model)
        if peer is not None:
            row |= {"peer": "onnxruntime", "peer_value": peer, "ratio": peer / processor}
        rows += [
            {"name": f"{model}: first result", "value": first, "unit": "s"},
            row,
            {"name": f"{model}: all second versions ready", "value": settled, "unit": "s"},
            {"name": f"{model}: both versions, processor time", "value": both, "unit": "s"},
        ]
        for device in VIRTUAL if model in SMALL else ():
            # second versions of a virtual GPU's translations are compiled after a few launches
            there, spent = _first(device, model)[:2]
            name = f"{model} on {device}: first result"
            rows += [
                {"name": name, "value": there, "unit": "s"},
                {"name": f"{name}, processor time", "value": spent, "unit": "s", "peer": HOST,
                 "peer_value": processor, "ratio": processor / spent},
            ]  # fmt: skip
    return rows
