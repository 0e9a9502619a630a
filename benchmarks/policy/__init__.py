"""What checks the scheduler in simulated time."""
