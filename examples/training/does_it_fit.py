"""Does training fit on this card? Planned for cards that this machine does not have.

A null device compiles for a chip, plans the memory of its usual board and counts work; it runs
nothing, so it needs neither the card nor its memory. The last line asks for more than the card has.

usage: python examples/training/does_it_fit.py [DEVICE ...]
"""

import sys

import ugpu
from ugpu import Tensor, nn, optim

WIDTH, LAYERS = 8192, 4


def train(device: ugpu.Device, batch: int) -> None:
    """Plan one step: forward pass, backward pass, AdamW."""
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU()))).to(device)
    optimizer = optim.AdamW(model.parameters())
    loss = model(Tensor.rand(batch, WIDTH, device=device)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def plan(name: str, batch: int) -> str:
    """Return what a step of training takes, in words."""
    with ugpu.open(name) as device:
        capacity = device.info()["memory_bytes"] / 2**30
        try:
            train(device, batch)
        except ugpu.errors.OutOfMemory:
            return f"does not fit into {capacity:.0f} GiB"
        counts = device.counts()
        return (
            f"{device.memory_peak() / 2**30:.1f} of {capacity:.0f} GiB, {counts.kernels} kernels, "
            f"{counts.flops / 1e12:.1f} TFLOP, {counts.moved_bytes / 2**30:.1f} GiB moved"
        )


if __name__ == "__main__":
    for name in sys.argv[1:] or ["null:gfx1100", "null:sm_90"]:
        print(f"{name}, batch 4096: {plan(name, 4096)}")
    print(f"null:gfx1100, batch 131072: {plan('null:gfx1100', 131072)}")
