"""A handler on TorchServe's own base class: it loads the network, and says what comes before it and after it."""

import torch
from ts.torch_handler.base_handler import BaseHandler


class DoublerHandler(BaseHandler):
    def preprocess(self, data):
        rows = [row.get("data") or row.get("body") for row in data]
        return torch.tensor(rows, dtype=torch.float32).to(self.device)

    def postprocess(self, data):
        return data.tolist()
