"""What this machine has: cores, GPUs and their driver, and what the processor can do. Imports nothing heavy."""
