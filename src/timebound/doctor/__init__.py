"""Looks over what a server needs before it is started: machine, settings, port, store and models."""
