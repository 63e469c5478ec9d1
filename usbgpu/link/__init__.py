"""USB devices: transfers, UAS, port power, the firmware's serial console."""
