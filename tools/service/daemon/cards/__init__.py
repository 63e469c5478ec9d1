"""The daemon's cards: boot, recovery, rest, watch, arrival and removal."""
