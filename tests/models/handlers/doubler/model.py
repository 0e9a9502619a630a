"""The network of `doubler_handler.py`, whose weights are in the archive beside it."""

import torch


class Doubler(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.factor
