"""Bring-up of a chip, stage by stage, and the order of its units."""
