"""Qualcomm Adreno: the driver, over KGSL and msm, and the models."""
