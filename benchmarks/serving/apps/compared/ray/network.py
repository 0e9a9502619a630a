import torch
from net import Net
from ray import serve
from starlette.requests import Request


@serve.deployment
class Classify:
    def __init__(self):
        self.net = Net().eval()
        self.net.load_state_dict(torch.load("net.pth"))

    async def __call__(self, request: Request) -> dict:
        signal = (await request.json())["signal"]
        with torch.inference_mode():
            return {"class": int(self.net(torch.tensor([signal])).argmax())}


app = Classify.bind()
