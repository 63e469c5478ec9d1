"""Generate the tables of nv/abi from NVIDIA's public headers."""
