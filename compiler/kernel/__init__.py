"""The kernel IR, and lowering to it: loops, tiles and matrix units, depending on the target."""
