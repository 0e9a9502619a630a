import litserve as ls
import torch
from net import Net


class Classify(ls.LitAPI):
    def setup(self, device):
        self.net = Net().eval().to(device)
        self.net.load_state_dict(torch.load("net.pth", map_location=device))
        self.device = device

    def decode_request(self, request):
        return torch.tensor([request["signal"]], device=self.device)

    @torch.inference_mode()
    def predict(self, signal):
        return {"class": int(self.net(signal).argmax())}


if __name__ == "__main__":
    ls.LitServer(Classify()).run(port=8000)
