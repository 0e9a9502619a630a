import torch
from fastapi import Body, FastAPI
from net import Net

app = FastAPI()
net = Net().eval()
net.load_state_dict(torch.load("net.pth"))


@app.post("/classify")
@torch.inference_mode()
def classify(signal: list[float] = Body(embed=True)):
    return {"class": int(net(torch.tensor([signal])).argmax())}
