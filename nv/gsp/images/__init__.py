"""Images of firmware: the board's ROM, and files; parsed and checked before anything is sent."""
