"""The model behind `timebound demo`: three small members that read a handwritten digit."""
