"""Tensors as protocols send them and as they travel to workers. Only `arrays.py` needs numpy: no gateway loads it."""
