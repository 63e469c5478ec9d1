"""A model of msm, the upstream kernel driver: DRM calls, submit queues, fences."""
