"""What chips of a generation share: facts for driver and model, and the driver's units."""
