"""What the benchmarks share: load, processes, models, tables."""
