"""One process of a data parallel training run: FILE WORLD RANK DEVICE [LEAVE].

Trains on its share of each batch and prints the loss of all and the sum of all parameters, as JSON.
LEAVE: end without a word after so many steps.
"""

from __future__ import annotations

import datetime
import json
import os
import sys

import numpy as np

import ugpu
from ugpu import Tensor, nn, optim
from ugpu.hcq.errors import HostError

STEPS, BATCH = 6, 8


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return inputs [BATCH, 5] and targets [BATCH, 1] of each step."""
    rng = np.random.default_rng(3)
    inputs = rng.standard_normal((STEPS, BATCH, 5)).astype(np.float32)
    return [(x, np.sin(x.sum(1, keepdims=True))) for x in inputs]


def train(name: str, world: int, rank: int, leave: int = STEPS + 1) -> dict[str, object]:
    """Return the mean losses, and the sum of the parameters after the last step."""
    with ugpu.open(name) as device:
        Tensor.manual_seed(rank)  # every process begins with other parameters
        model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
        optimizer = optim.AdamW(model.parameters(), lr=0.05)
        if world > 1:
            ugpu.torch.distributed.broadcast_parameters(model.parameters())
        losses = []
        for step, (inputs, targets) in enumerate(batches()):
            if step == leave:
                os._exit(0)
            share = slice(rank, None, world)
            x = Tensor(inputs[share], device=device)
            loss = (model(x) - Tensor(targets[share], device=device)).square().mean()
            loss.backward()
            if world > 1:
                try:
                    ugpu.torch.distributed.average_gradients(model.parameters())
                except HostError as error:
                    kept = all(each.grad is not None for each in model.parameters())
                    return {"lost": str(error), "kept": kept}
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        total = float(sum(each.numpy().sum() for each in model.parameters()))
        return {"losses": losses, "total": total}


if __name__ == "__main__":
    file, world, rank, device, *leave = sys.argv[1:]
    if int(world) > 1:
        import torch.distributed

        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{file}", world_size=int(world), rank=int(rank),
            timeout=datetime.timedelta(seconds=60),
        )  # fmt: skip
    sys.stdout.write(json.dumps(train(device, int(world), int(rank), *map(int, leave))))
