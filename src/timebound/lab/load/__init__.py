"""Load on an HTTP server: a lean client, when to send, what to send, and what came of it."""
