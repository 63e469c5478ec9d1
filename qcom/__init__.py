"""Qualcomm Adreno driver; not built yet."""
