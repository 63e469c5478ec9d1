"""The resource manager's controls, by object."""
