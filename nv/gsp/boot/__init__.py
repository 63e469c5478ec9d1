"""The start of the GSP, one file a step, and the way back."""
