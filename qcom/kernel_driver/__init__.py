"""Adreno's kernel drivers, KGSL and msm, behind one interface."""
