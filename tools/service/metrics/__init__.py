"""`ugpu metrics`: telemetry of all open devices for Prometheus."""
