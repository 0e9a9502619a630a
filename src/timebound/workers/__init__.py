"""Processes that hold models: started, fed, watched, restarted, stopped; and the wire to them."""
