"""Guests that listen to events: metrics, logs. No room imports them."""
