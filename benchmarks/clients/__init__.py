"""Clients and load tools of others."""
