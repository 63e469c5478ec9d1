"""The web page of ugpud: the fleet live, and what an admin may do to it."""
