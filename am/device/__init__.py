"""An AMD card and its holders, as devices."""
