"""Devices of a ugpud in other people's schedulers: labgrid, Jumpstarter, Ray."""
