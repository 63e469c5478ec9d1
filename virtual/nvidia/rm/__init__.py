"""The model of the resource manager: objects, their rules, controls."""
