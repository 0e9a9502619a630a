import bentoml
import torch
from net import Net


@bentoml.service
class Classify:
    def __init__(self):
        self.net = Net().eval()
        self.net.load_state_dict(torch.load("net.pth"))

    @bentoml.api
    @torch.inference_mode()
    def classify(self, signal: list[float]) -> dict:
        return {"class": int(self.net(torch.tensor([signal])).argmax())}
