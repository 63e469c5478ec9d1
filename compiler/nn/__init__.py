"""Modules with PyTorch's names, layouts of weights and names of states: `ugpu.nn`."""

from __future__ import annotations
