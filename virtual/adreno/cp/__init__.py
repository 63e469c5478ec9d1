"""The command processor: PM4 packets, registers, dispatches and blits."""
