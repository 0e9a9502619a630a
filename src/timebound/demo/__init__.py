"""The model behind `timebound demo`: three small networks that read a handwritten Chinese character."""
