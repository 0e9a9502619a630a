import gradio as gr
import torch
from net import Net

net = Net().eval()
net.load_state_dict(torch.load("net.pth"))


@torch.inference_mode()
def classify(signal):
    return {"class": int(net(torch.tensor([signal])).argmax())}


gr.Interface(classify, "json", "json", api_name="classify").launch()
