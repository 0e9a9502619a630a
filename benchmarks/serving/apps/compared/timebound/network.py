import numpy as np
from net import Net

import timebound as tb


class Classify(tb.Model):
    example = {"signal": [0.0] * 64}

    class Request(tb.Struct):
        signal: list[float]

    def load(self):
        self.net = tb.torch(Net, weights="net.pth")

    def prepare(self, request):
        return np.array(request.signal, np.float32)

    def finish(self, scores, request):
        return {"class": int(scores.argmax())}
