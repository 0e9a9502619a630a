"""Try it before it is needed: a simulated server around the real scheduler, and bounds to compare it with."""
