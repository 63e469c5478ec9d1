"""The security processor and the firmware images that it loads."""
