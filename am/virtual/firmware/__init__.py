"""What runs firmware on the virtual card: PSP, SMU, and the images they accept."""
