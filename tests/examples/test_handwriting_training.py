"""What the handwriting example's training rests on: names, views, flowing strokes, and going on from served files."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from examples.handwriting.average import average
from examples.handwriting.data import HANDS
from examples.handwriting.nets import CLASSES, KNOWN, MEMBERS, shares_of
from examples.handwriting.restore import restore
from examples.handwriting.strokes import HAND, Strokes, _flowing, draw
from examples.handwriting.train import alone, together
from examples.handwriting.views import BalancedEdges, Evened
from torch import nn

import timebound as tb
from timebound.demo import app
from timebound.demo.picture import read_picture

MODELS = Path(app.__file__).parent / "models"


def test_all_that_is_none_of_the_800_is_added_up_to_isnull() -> None:
    scores = torch.zeros(2, CLASSES["lite"])
    scores[1, KNOWN - 1] = 50.0
    shares = shares_of(scores)
    assert shares.shape == (2, KNOWN + 1)
    assert shares[0, -1].item() == pytest.approx(1201 / 2001, abs=1e-5)
    assert shares[1].argmax().item() == KNOWN - 1
    assert shares.sum(1).tolist() == pytest.approx([1, 1], abs=1e-5)


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    """The page's samples as the networks see them."""
    grey = [tb.image.decode(base64.b64decode(one["image"]), mode="L") for one in app.SAMPLES]
    return torch.tensor(np.stack([read_picture(one) for one in grey]))[:, None]


@pytest.mark.parametrize("name", MEMBERS)
def test_a_served_file_can_be_trained_on(name: str, pictures: torch.Tensor) -> None:
    """Restored, it answers as before, whether its norms use what they were given or what they see."""
    session = onnxruntime.InferenceSession(MODELS / f"{name}.onnx", providers=["CPUExecutionProvider"])
    served = torch.tensor(session.run(None, {"pixels": pictures.numpy()})[0])
    net = restore(name, MODELS / f"{name}.onnx", pictures)
    assert net.training, "or nothing would be learned from here on"
    for part in net.modules():
        if isinstance(part, nn.Dropout):
            part.eval()
    norm = next(part for part in net.modules() if isinstance(part, nn.BatchNorm2d))
    assert norm.running_var.std() > 0, "or the norms were left folded"
    with torch.no_grad():
        learning = shares_of(net(pictures))
        asked = shares_of(restore(name, MODELS / f"{name}.onnx", pictures).eval()(pictures))
    for answers in (learning, asked):
        assert (answers.argmax(1) == served.argmax(1)).all()
        assert (answers - served).abs().max() < 0.2


def test_a_file_that_lacks_a_layer_is_refused(tmp_path: Path, pictures: torch.Tensor) -> None:
    model = onnx.load(MODELS / "lite.onnx")
    (layer,) = (node for node in model.graph.node if node.name == "/net/features/features.3/steps/steps.1/Conv")
    model.graph.node.remove(layer)
    onnx.save(model, tmp_path / "lite.onnx")
    with pytest.raises(ValueError, match=r"has no features\.3\.steps\.1\.conv\.weight, .*it is no lite"):
        restore("lite", tmp_path / "lite.onnx", pictures)


def test_a_file_of_another_network_is_refused(pictures: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"mobile_wide.onnx: features\.0\.conv\.weight has the shape"):
        restore("mobile_slim", MODELS / "mobile_wide.onnx", pictures)


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_the_mean_of_a_network_and_itself_is_that_network(name: str, pictures: torch.Tensor) -> None:
    twice = [restore(name, MODELS / f"{name}.onnx", pictures) for _ in range(2)]
    with torch.no_grad():
        asked = shares_of(average(twice, pictures)(pictures))
        before = shares_of(twice[0].eval()(pictures))
    assert (asked - before).abs().max().item() < 0.05


def test_the_norms_of_a_mean_are_measured_on_it(pictures: torch.Tensor) -> None:
    one, other = (restore("mobile_wide", MODELS / "mobile_wide.onnx", pictures) for _ in range(2))
    first = other.get_submodule("features.0")
    first.conv.weight.data.neg_()  # nothing is left of this layer in the mean, as with weights that disagree
    mean = average([one, other], pictures)
    norm = mean.get_submodule("features.0.norm")
    assert not mean.training
    assert norm.momentum == first.norm.momentum
    assert norm.running_var.max().item() < 1e-6 < first.norm.running_var.min().item()


def test_every_hand_flows_and_no_two_are_alike() -> None:
    assert sorted(HANDS) == sorted(MEMBERS)
    assert len(set(HANDS.values())) == len(HANDS)
    assert all(hand.flow[1] > 0 for hand in HANDS.values())


@pytest.mark.parametrize("has_teacher", [True, False])
def test_members_are_taught_to_be_right_together(has_teacher: bool) -> None:
    """Two that are right about half of the pictures cost less where they are wrong about different ones."""
    labels = torch.tensor([0, 1])
    sure = nn.functional.one_hot(labels, CLASSES["lite"]).float() * 10
    taught = sure * 2 if has_teacher else torch.empty(0)
    first, second = sure.clone(), sure.clone()
    first[0], second[1] = 0.0, 0.0
    alike, apart = [first, first], [first, second]
    assert together(apart, labels, taught) < together(alike, labels, taught) - 0.5
    each = [alone(scores, labels, taught).item() for scores in (first, second)]
    assert each[0] == pytest.approx(each[1]), "and one by one they are as good"
    assert together(apart, labels, taught, share=0).item() == pytest.approx(each[0]), "which is all that counts with 0"
    assert together(apart, labels, taught, share=1) < together(apart, labels, taught) < each[0]


def test_balance_takes_the_place_out_of_a_picture(pictures: torch.Tensor) -> None:
    view = BalancedEdges()
    small = nn.functional.interpolate(pictures, size=40, mode="bilinear")
    left, right = (view(nn.functional.pad(small, (side, 24 - side, 12, 12))) for side in (4, 20))
    assert (left - right).abs().mean() < left.mean() * 0.05


@pytest.mark.parametrize("view", [Evened(), BalancedEdges()])
def test_an_empty_picture_has_a_view(view: nn.Module) -> None:
    assert view(torch.zeros(1, 1, 64, 64)).abs().max() == 0


def test_balance_does_not_depend_on_the_grey_of_the_paper(pictures: torch.Tensor) -> None:
    view = BalancedEdges()
    white, grey = view(pictures), view(pictures * 0.9 + 0.1)
    assert (white * 0.9 - grey).abs().mean() < white.mean() * 0.1


def _flowed(far: float, *, third: bool) -> torch.Tensor:
    """There and back in two strokes, then a third at this place, smoothed: points [3, 9, 2]."""
    steps = torch.linspace(0, 1, 9)
    there_and_back = [torch.stack([along, 0.5 * steps], 1) for along in (steps, 1 - steps)]
    lines = torch.stack([*there_and_back, torch.full((9, 2), far)])
    return _flowing(lines[None], torch.tensor([[True, True, third]]), torch.full((1, 1, 1), 0.4))[0]


def test_a_flowing_hand_cuts_its_way_short() -> None:
    """The turn from one stroke to the next is cut off; where the pen begins and ends stays."""
    flowed = _flowed(9.0, third=False)
    assert flowed[0, 0].tolist() == [0, 0]
    assert flowed[1, -1].tolist() == [0, 0.5]
    assert flowed[0, -1, 0] < 0.97
    assert flowed[1, 0, 0] < 0.97
    assert flowed[0, 4].tolist() == pytest.approx([0.5, 0.25], abs=0.01), "what is straight stays straight"


def test_only_strokes_that_are_written_pull_the_pen() -> None:
    assert torch.equal(_flowed(9.0, third=False)[:2], _flowed(-9.0, third=False)[:2])
    assert not torch.equal(_flowed(9.0, third=True)[:2], _flowed(-9.0, third=True)[:2])


def test_drawings_differ_once_the_hand_flows() -> None:
    steps = torch.linspace(0, 1, 9)
    strokes = Strokes(["x"], torch.stack([steps, steps], 1).expand(1, 2, -1, -1), torch.tensor([2]))
    drawn = []
    for flow in ((0.0, 0.0), (0.4, 0.4)):
        torch.manual_seed(3)
        drawn.append(draw(strokes, torch.tensor([0]), HAND._replace(flow=flow)))
    assert drawn[0].shape == (1, 64, 64)
    assert not torch.equal(*drawn)
