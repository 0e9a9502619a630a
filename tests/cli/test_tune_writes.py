from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from timebound.cli.tune import _write
from timebound.lab.curve import Facts, Point
from timebound.lab.tune import Settings, Target, Trial, Tuning
from timebound.types import ModelInfo, Timing


@pytest.mark.parametrize(
    ("others", "anyway", "is_written"), [(0.1, False, True), (1.5, False, False), (1.5, True, True)]
)
def test_what_is_not_to_be_trusted_is_not_written_unless_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], others: float, anyway: bool, is_written: bool
) -> None:
    target = Target(tmp_path / "app.py", deadline_s=1.0)
    tuning = Tuning(target, tmp_path / "state.json", print)
    tuning.record.facts = Facts(ModelInfo(name="m", max_batch=1), b"{}")
    tuning.record.curves["2 threads"] = [Point(1, 0.01, Timing(), 1.0)]
    tuning.record.trials = [Trial(Settings(1, 1, 2), 10.0, 9.0, 0.9, 1.0, 1.0, foreign_cores=others)]
    output = tmp_path / "timebound.toml"
    assert _write(Namespace(output=output, anyway=anyway), target, tuning) == (0 if is_written else 1)
    assert output.exists() == is_written
    assert ("nothing was written; --anyway writes 1 worker" in capsys.readouterr().err) != is_written
