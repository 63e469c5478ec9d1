"""Plans of a run on a target: packing, order, lifetimes, memory."""
