"""The resource manager in the GSP's firmware: objects, memory, channels of a card."""
