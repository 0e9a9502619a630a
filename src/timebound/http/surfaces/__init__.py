"""The protocols that models are asked in, one file each."""

from timebound.http.surfaces.base import Surface
from timebound.http.surfaces.lists import Lists
from timebound.http.surfaces.native import Native
from timebound.http.surfaces.oip import OpenInference
from timebound.http.surfaces.predict import Predict
from timebound.http.surfaces.sagemaker import SageMaker
from timebound.http.surfaces.torchserve import Explanations, Invocations, TorchServe

SURFACES: tuple[type[Surface], ...] = (
    TorchServe,
    Explanations,
    Invocations,
    Native,
    Lists,
    OpenInference,
    Predict,
    SageMaker,
)
"""Every protocol; where two claim a path, the first has it."""
