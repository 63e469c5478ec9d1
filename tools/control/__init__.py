"""Programs that change who owns a device, or its state."""
