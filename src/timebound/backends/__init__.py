"""One adapter per ML library: a backend takes a batch and gives one output per item."""
