"""An Adreno GPU as a device, and its sensors."""
