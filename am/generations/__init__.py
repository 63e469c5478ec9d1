"""Facts for driver and model, and the driver's units, shared by the chips of a generation."""
