"""A text classifier in the style of MMS: a module function that is called once with None, state in a global."""

import json
import os


class MoodService(object):
    def __init__(self):
        self.initialized = False
        self.words = None

    def initialize(self, context):
        model_dir = context.system_properties.get("model_dir")
        with open(os.path.join(model_dir, "words.json")) as file:
            self.words = json.load(file)
        self.initialized = True

    def handle(self, data, context):
        answers = []
        for row in data:
            text = row.get("data")
            if text is None:
                text = row.get("body")
            if isinstance(text, dict):
                text = text["text"]
            if isinstance(text, (bytes, bytearray)):
                text = text.decode("utf-8")
            score = sum(self.words.get(word, 0) for word in text.lower().split())
            answers.append("good" if score > 0 else "bad" if score < 0 else "neither")
        return answers


_service = MoodService()


def handle(data, context):
    if not _service.initialized:
        _service.initialize(context)
    if data is None:
        return None
    return _service.handle(data, context)
