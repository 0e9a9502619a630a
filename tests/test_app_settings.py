"""An app's own settings: where they are read, and what a model gets of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from timebound.app_settings import check_known, read, settings_of
from timebound.config import describe, of_options, resolve
from timebound.errors import SetupError
from timebound.model import Model, Struct
from timebound.target import load_models, understudies
from timebound.testing import ask


class Wanted(Struct):
    threshold: float = 0.5
    token: str = ""


def test_what_is_given_beats_the_environment_that_beats_the_files(tmp_path: Path) -> None:
    (tmp_path / "timebound.toml").write_text("[app]\na = 1\nb = 2\nc = 3\nd = 4\n")
    (tmp_path / ".env").write_text("APP_B=20\nAPP_C=30\nAPP_D=40\n")
    found = read(["d=4000"], {"APP_C": "300", "APP_D": "400", "OTHER": "x"}, tmp_path)
    assert found == {"a": 1, "b": "20", "c": "300", "d": "4000"}
    assert read(["a=4"], {"TIMEBOUND_APP": '{"a": 1, "b": [2]}', "APP_B": "3"}, None) == {"a": "4", "b": [2]}
    with pytest.raises(SetupError, match="TIMEBOUND_APP must be a JSON object"):
        read([], {"TIMEBOUND_APP": "[]"}, None)


def test_settings_are_typed_by_the_class(tmp_path: Path) -> None:
    assert settings_of(Wanted, {"threshold": "0.9", "other": 1}, where="x") == Wanted(0.9)
    assert settings_of(None, {"threshold": "0.9"}, where="x").threshold == "0.9"


def test_a_wrong_value_is_told_without_being_shown() -> None:
    with pytest.raises(SetupError, match=r"class Mood: settings: Expected `float`.*\$\.threshold.*--set") as told:
        settings_of(Wanted, {"threshold": "secret"}, where="class Mood")
    assert "secret" not in str(told.value)
    with pytest.raises(SetupError, match="begins with 'secret value'"):
        read(["secret value"], {}, None)


def test_a_misspelt_setting_is_told() -> None:
    with pytest.raises(SetupError, match="the app has no setting 'treshold'; did you mean 'threshold'"):
        check_known([Wanted], ["treshold"])
    check_known([Wanted, None], ["treshold"])  # one that says nothing may read anything


def test_values_are_not_printed_with_the_options(tmp_path: Path) -> None:
    shown = describe(resolve({}, {}, tmp_path, app=["token=hidden"]))
    assert "token" in shown
    assert "hidden" not in shown


def test_models_find_their_settings_wherever_they_are_made(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(
        dedent("""
            import timebound as tb

            class Mood(tb.Model):
                class Settings(tb.Struct):
                    threshold: float = 0.5

                def equip(self):
                    self.limit = self.settings.threshold

                def infer(self, batch):
                    return [self.limit for _ in batch]
        """)
    )
    values = of_options({"app": {"threshold": 0.7}}).app
    made: list[Model] = [*load_models(app, threads=1, app=values), *understudies(app, app=values)]
    assert [model.infer([b""]) for model in made] == [[0.7], [0.7]]
    with pytest.raises(SetupError, match="no setting 'treshold'"):
        load_models(app, threads=1, app={"treshold": 1})


SHOP = """
import timebound as tb

class Shop(tb.Model):
    example = b"x"

    class Settings(tb.Struct):
        threshold: float = 0.5

    def load(self):
        print("the threshold is", self.settings.threshold, flush=True)

    def infer(self, batch):
        return [self.settings.threshold for _ in batch]
"""


def timebound(*arguments: str | Path, here: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "timebound", *map(str, arguments)],
        capture_output=True, text=True, check=False, cwd=here, env=os.environ | environment, timeout=60,
    )  # fmt: skip


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "app.py").write_text(SHOP)
    (folder / "timebound.toml").write_text("port = 4321\n[app]\nthreshold = 0.7\n")
    return folder


@pytest.mark.parametrize("target", ["shop", "shop/app.py", "shop/app.py:Shop"])
def test_files_beside_the_app_are_read_wherever_it_is_started(shop: Path, target: str) -> None:
    ran = timebound("serve", target, "--print-config", here=shop.parent)
    assert "4321" in ran.stdout
    assert "settings of the app, whose values are not shown: threshold" in ran.stdout


def test_a_test_finds_the_settings_that_a_server_finds(shop: Path) -> None:
    assert ask(shop / "app.py", b"x") == 0.7


def test_variables_of_other_programs_stop_nothing(shop: Path) -> None:
    ran = timebound("doctor", "shop/app.py", here=shop.parent, APP_ENV="production")
    assert "no setting" not in ran.stdout
    assert (ran.returncode, "model memory" in ran.stdout) == (0, True)


def test_what_is_set_for_the_doctor_reaches_the_models_it_tries(shop: Path) -> None:
    wrong = timebound("doctor", "shop/app.py", "--set", "treshold=1", here=shop.parent)
    assert "the app has no setting 'treshold'; did you mean 'threshold'" in wrong.stdout
    unfit = timebound("doctor", "shop/app.py", "--set", "threshold=much", here=shop.parent)
    assert "settings: Expected `float`" in unfit.stdout
    vain = timebound("tune", "shop/app.py", "--set", "threshold", here=shop.parent)
    assert (vain.returncode, "--set takes name=value" in vain.stderr) == (2, True)
