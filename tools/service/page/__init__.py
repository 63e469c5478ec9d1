"""The web page of ugpud: a live view of the fleet, and actions for admins."""
