"""Order by deadline; which requests go together, and when. Knows no sockets, no processes, no HTTP."""
