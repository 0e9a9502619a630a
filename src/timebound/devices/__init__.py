"""Devices that run networks: what they can do, and the one thread that drives them."""
