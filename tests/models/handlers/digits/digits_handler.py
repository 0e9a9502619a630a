"""An image classifier in the style of public handlers: a class, batches, weights and names from the archive."""

import base64
import io
import json
import os

import numpy as np
from PIL import Image


class DigitsClassifier:
    def __init__(self):
        self.context = None
        self.initialized = False
        self.weights = None
        self.mapping = None

    def initialize(self, context):
        self.context = context
        properties = context.system_properties
        model_dir = properties.get("model_dir")
        serialized = context.manifest["model"]["serializedFile"]
        self.weights = np.load(os.path.join(model_dir, serialized))["weights"]
        with open("index_to_name.json") as file:  # beside the handler: it runs in its own folder
            self.mapping = json.load(file)
        self.initialized = True

    def preprocess(self, data):
        images = []
        for row in data:
            image = row.get("data") or row.get("body")
            if isinstance(image, str):
                image = base64.b64decode(image)
            if isinstance(image, (bytearray, bytes)):
                image = Image.open(io.BytesIO(image)).convert("L").resize((8, 8))
                image = np.asarray(image, dtype=np.float32) / 255
            images.append(np.asarray(image, dtype=np.float32).ravel())
        return np.stack(images)

    def inference(self, batch):
        scores = np.exp(batch @ self.weights)
        return scores / scores.sum(axis=1, keepdims=True)

    def postprocess(self, output):
        best = output.argsort(axis=1)[:, ::-1][:, :3]
        return [
            {self.mapping[str(place)]: round(float(row[place]), 6) for place in places}
            for row, places in zip(output, best)
        ]

    def handle(self, data, context):
        self.context = context
        return self.postprocess(self.inference(self.preprocess(data)))
