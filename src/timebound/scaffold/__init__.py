"""New applications from templates; `timebound new` writes them."""
