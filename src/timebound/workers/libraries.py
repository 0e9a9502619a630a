"""What a model's speed depends on besides its code and its machine: a saved profile is for these only."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from timebound.devices.base import current_device
from timebound.model import Model

_PACKAGES = {"onnxruntime": ("onnxruntime", "onnxruntime-gpu"), "openvino": ("openvino",), "torch": ("torch",)}


def made_on(model: Model) -> str:
    """The device, what computes, and its version, for example `cpu, onnxruntime 1.20.1`."""
    net, opened = model.net, current_device()
    named = [getattr(each, "device", "cpu") for each in (net, *model.on_device)]
    device = next((name for name in named if name != "cpu"), "cpu")
    if device != "cpu" and opened is not None:
        facts = {**opened.facts(), "device": device.partition(":")[0]}  # which of several alike does not matter
        return ", ".join([*(f"{name} {value}" for name, value in facts.items()), *_modes(net)])
    engines = {str(each.engine) for each in model.opened if each.engine}
    engines |= {kind for each in getattr(net, "members", [net]) if (kind := getattr(each, "kind", "")) in _PACKAGES}
    return ", ".join(["cpu", *(_with_version(engine) for engine in sorted(engines)), *_modes(net)])


def _modes(net: Any) -> list[str]:
    """How networks of torch compute, where the server says it."""
    modes = {str(mode) for each in getattr(net, "members", [net]) if (mode := getattr(each, "mode", ""))}
    return sorted(modes)


def _with_version(engine: str) -> str:
    for package in _PACKAGES.get(engine.partition("-")[0], ()):
        try:
            return f"{engine} {version(package)}"
        except PackageNotFoundError:
            continue
    return engine
