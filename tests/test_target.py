"""What `serve` can be pointed at, and what is said when it is the wrong thing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from tests.models.onnx_files import save_doubler
from tests.models.torch_files import save_export, save_script

import timebound as tb
from timebound.errors import SetupError
from timebound.importer import describe
from timebound.model import Model, name_of
from timebound.target import check_target, each_of, load_models, resolved, together, understudies

ECHO = """
    import timebound as tb

    class Echo(tb.Model):
        def infer(self, batch):
            return batch
"""


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Apps put their folder on the path and modules beside them in the table; take both out again."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("timebound_app_") or name == "labels":
            del sys.modules[name]


def write(file: Path, code: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dedent(code))
    return file


def load(target: Path) -> list[Model]:
    return load_models(target, threads=1)


def names(target: Path) -> list[str]:
    return [name_of(type(model)) for model in load(target)]


def complaint(target: Path) -> str:
    with pytest.raises(SetupError) as caught:
        load(target)
    return str(caught.value)


def test_a_file_that_changed_within_a_second_and_kept_its_length_is_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    app = write(tmp_path / "app.py", ECHO)
    first = names(app)
    written = app.stat().st_mtime
    os.utime(write(app, ECHO.replace("Echo", "Ohce")), (written, written))
    assert (first, names(app)) == (["echo"], ["ohce"])


def test_a_python_file_serves_its_model_classes(tmp_path: Path) -> None:
    app = write(
        tmp_path / "app.py",
        """
        import timebound as tb
        from timebound import Model

        class _Base(tb.Model):
            def infer(self, batch):
                return batch

        class Second(_Base): ...
        class First(_Base):
            name = "one"
        """,
    )
    assert names(app) == ["second", "one"]


def test_a_class_with_two_names_in_the_file_is_served_once(tmp_path: Path) -> None:
    assert names(write(tmp_path / "app.py", ECHO + "\n    Again = Echo\n")) == ["echo"]


def test_load_has_run_and_relative_paths_start_at_the_apps_folder(tmp_path: Path) -> None:
    save_doubler(tmp_path / "weights" / "net.onnx")
    app = write(
        tmp_path / "app.py",
        """
        import timebound as tb

        class Net(tb.Model):
            def load(self):
                self.net = tb.onnx("weights/net.onnx")
        """,
    )
    (model,) = load(app)
    assert model.net.path == tmp_path / "weights" / "net.onnx"


EQUIPPED = """
import timebound as tb

class Labels(tb.Model):
    def equip(self):
        self.labels = ["a", "b"]

    def load(self):
        self.net = len(self.labels)

    def infer(self, batch):
        return batch
"""


def test_equip_has_run_before_load_and_where_nothing_is_loaded(tmp_path: Path) -> None:
    app = write(tmp_path / "app.py", EQUIPPED)
    (loaded,), (bare,) = load(app), understudies(app)
    assert (loaded.net, bare.net) == (2, None)
    assert bare.labels == ["a", "b"]  # type: ignore[attr-defined]


def test_a_failing_equip_names_the_class_and_the_line(tmp_path: Path) -> None:
    app = write(tmp_path / "app.py", EQUIPPED.replace('["a", "b"]', "1 / 0"))
    with pytest.raises(SetupError, match=r"Labels\.equip\(\) failed: ZeroDivisionError.*app\.py, line 6"):
        load(app)


def test_an_app_may_import_the_files_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "labels.py", "NAME = 'cat'\n")
    app = write(
        tmp_path / "app.py",
        """
        import timebound as tb
        from labels import NAME

        class Animal(tb.Model):
            name = NAME
            net = len
        """,
    )
    assert names(app) == ["cat"]


def test_two_apps_in_a_folder_each_see_their_own_files(tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        write(tmp_path / name / "1" / "labels.py", f"LABEL = {name!r}\n")
        write(
            tmp_path / name / "1" / "app.py",
            f"""
            import timebound as tb
            from labels import LABEL

            class {name.title()}(tb.Model):
                label = LABEL
                def infer(self, batch):
                    return batch
            """,
        )
    assert {name_of(type(model)): model.label for model in load(tmp_path)} == {"cats": "cats", "dogs": "dogs"}  # type: ignore[attr-defined]


def test_an_onnx_file_is_named_after_itself(tmp_path: Path) -> None:
    (model,) = load(save_doubler(tmp_path / "twice.onnx"))
    assert (name_of(type(model)), type(model).version) == ("twice", "1")


def test_a_folder_serves_the_newest_version_of_each_model(tmp_path: Path) -> None:
    for version in ("2", "10", "9", "draft"):
        save_doubler(tmp_path / "twice" / version / "model.onnx")
    save_doubler(tmp_path / "plain.onnx")
    write(tmp_path / "echo" / "1" / "app.py", ECHO)
    (tmp_path / "notes.txt").write_text("not a model")
    (tmp_path / "empty").mkdir()
    models = {name_of(type(model)): type(model).version for model in load(tmp_path)}
    assert models == {"twice": "10", "plain": "1", "echo": "1"}


def test_torch_files_are_served_alone_and_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "twice" / "1").mkdir(parents=True)
    save_export(tmp_path / "twice" / "1" / "model.pt2")
    save_script(tmp_path / "thrice.pt", inputs="x: float32[any, 3]")
    assert sorted(names(tmp_path)) == ["thrice", "twice"]
    assert names(tmp_path / "thrice.pt") == ["thrice"]


def test_a_folder_with_an_app_in_it_is_that_app(tmp_path: Path) -> None:
    write(tmp_path / "hello" / "app.py", ECHO)
    save_doubler(tmp_path / "hello" / "net.onnx")
    (model,) = load(tmp_path / "hello")
    assert (name_of(type(model)), type(model).version) == ("echo", "1")
    assert [name_of(type(each)) for each in understudies(tmp_path / "hello")] == ["echo"]


def test_an_app_in_a_version_may_have_model_files_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "models" / "hello" / "2" / "app.py", ECHO)
    save_doubler(tmp_path / "models" / "hello" / "2" / "net.onnx")
    (model,) = load(tmp_path / "models")
    assert (name_of(type(model)), type(model).version) == ("hello", "2")


def test_a_version_may_be_written_with_leading_zeros(tmp_path: Path) -> None:
    save_doubler(tmp_path / "twice" / "001" / "model.onnx")
    save_doubler(tmp_path / "twice" / "002" / "model.onnx")
    (model,) = load(tmp_path)
    assert int(type(model).version) == 2


@pytest.mark.parametrize("count", [0, 2])
def test_a_version_holds_exactly_one_model(tmp_path: Path, count: int) -> None:
    place = tmp_path / "twice" / "1"
    place.mkdir(parents=True)
    for number in range(count):
        (place / f"{number}.onnx").touch()
    assert complaint(tmp_path) == f"{place} must hold an app.py or exactly one model file, and holds {count}"


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "app.py"
    with pytest.raises(SetupError, match=r"does not exist; give a \.py, \.onnx, \.pt2, \.pt or \.mar file") as caught:
        check_target(missing)
    assert str(caught.value).startswith(str(missing))


def test_another_kind_of_file_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "model.txt", "")
    assert (
        complaint(file)
        == f"cannot serve {file}: load it in an app.py, or give a .py, .onnx, .pt2, .pt or .mar file or a folder"
    )


def test_a_folder_without_a_model_is_told_where_models_go(tmp_path: Path) -> None:
    assert complaint(tmp_path) == (
        f"no model in {tmp_path}; put an app.py in it, or files at <model>/<version>/model.onnx or <model>.onnx"
    )


def test_a_python_file_without_a_model_is_told_what_to_add(tmp_path: Path) -> None:
    app = write(tmp_path / "app.py", "from timebound import Model\nclass Other: ...\n")
    assert (
        complaint(app) == f"{app} defines no model; add a class derived from timebound.Model, or a function with types"
    )


def test_of_several_functions_the_one_called_predict_is_suggested(tmp_path: Path) -> None:
    app = write(tmp_path / "app.py", "def helper(x: int) -> int: ...\ndef predict(x: int) -> int: ...\n")
    assert complaint(app).endswith(f"defines no model class, and 2 functions; say which one to serve: {app}:predict")


@pytest.mark.parametrize("decorator", ["lru_cache", "lru_cache(maxsize=8)", "checked"])
def test_a_decorated_function_is_a_model(tmp_path: Path, decorator: str) -> None:
    app = write(
        tmp_path / "app.py",
        f"""
from functools import lru_cache, wraps

def _checked(function):
    @wraps(function)
    def call(*values, **named):
        return function(*values, **named)
    return call

checked = _checked

@{decorator}
def twice(number: int) -> int:
    return 2 * number
""",
    )
    assert tb.testing.ask(app, {"number": 4}) == 8


@pytest.mark.parametrize("folder", ["project", "timebound", "importlib"])
def test_an_import_error_names_the_users_own_line(tmp_path: Path, folder: str) -> None:
    app = write(tmp_path / folder / "app.py", "x = 1\n\nimport no_such_library\n")
    assert complaint(app) == (
        f"importing {app} failed: ModuleNotFoundError: No module named 'no_such_library' (app.py, line 3); "
        f"install it for {sys.executable}, or put it beside app.py"
    )


def test_an_error_in_a_file_beside_the_app_names_that_file(tmp_path: Path) -> None:
    write(tmp_path / "labels.py", "LABELS = 1 / 0\n")
    app = write(tmp_path / "app.py", "import labels\n")
    assert complaint(app).endswith("ZeroDivisionError: division by zero (labels.py, line 1)")


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    app = write(tmp_path / "app.py", "x = 1\ndef broken(:\n")
    sentence = complaint(app)
    assert sentence.startswith(f"importing {app} failed: SyntaxError: ")
    assert "app.py, line 2" in sentence


def test_a_failing_load_names_the_class_and_the_line(tmp_path: Path) -> None:
    app = write(
        tmp_path / "app.py",
        """
        import timebound as tb

        class Net(tb.Model):
            def load(self):
                raise RuntimeError("no\\n weights")
        """,
    )
    assert complaint(app) == "Net.load() failed: RuntimeError: no weights (app.py, line 6)"


def test_a_setup_error_from_load_is_passed_on_as_it_is(tmp_path: Path) -> None:
    app = write(
        tmp_path / "app.py",
        """
        import timebound as tb

        class Net(tb.Model):
            def load(self):
                self.net = tb.onnx("gone.onnx")
        """,
    )
    sentence = complaint(app)
    assert sentence == f"model file not found: {tmp_path / 'gone.onnx'}; check the name, it is relative to {tmp_path}"


def test_a_load_that_sets_no_net_is_told_so(tmp_path: Path) -> None:
    app = write(tmp_path / "app.py", "import timebound as tb\nclass Net(tb.Model):\n    def load(self): ...\n")
    assert complaint(app).startswith("class Net has no infer: define `def infer(self, batch)`")


def test_a_class_is_checked_before_it_is_loaded(tmp_path: Path) -> None:
    app = write(tmp_path / "app.py", ECHO + "        deadline = 0\n")
    assert complaint(app).startswith("class Echo: deadline is 0;")


def test_two_models_with_one_name_are_refused(tmp_path: Path) -> None:
    save_doubler(tmp_path / "twice.onnx")
    save_doubler(tmp_path / "twice" / "1" / "model.onnx")
    assert complaint(tmp_path) == f"two models in {tmp_path} have the name 'twice'; give one of them another"


TWO = """
    import timebound as tb

    class First(tb.Model):
        path = "{first}"
        def infer(self, batch):
            return batch

    class Second(tb.Model):
        path = {second}
        def infer(self, batch):
            return batch
"""


@pytest.mark.parametrize(
    ("first", "second", "path"),
    [
        ("/same", '"/same"', "/same"),
        ("/predictions/second", "None", "/predictions/second"),
        ("/predictions/second/1", '"/other"', "/predictions/second/1"),
    ],
)
def test_two_models_with_one_path_are_refused(tmp_path: Path, first: str, second: str, path: str) -> None:
    file = write(tmp_path / "app.py", TWO.format(first=first, second=second))
    said = f"the models 'first' and 'second' in {file} would both answer at {path!r}; give one of them another path"
    assert complaint(file) == said


def test_a_file_that_is_no_onnx_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "model.onnx", "no graph")
    sentence = complaint(file)
    assert sentence.startswith(f"onnxruntime cannot load {file}: ")
    assert sentence.endswith("; export the model again")


def test_an_error_without_text_is_described_by_its_kind() -> None:
    assert describe(KeyError()) == "KeyError"


PAIR = """
    import timebound as tb

    class First(tb.Model):
        def infer(self, batch):
            return batch

    class Second(First):
        pass
"""


def test_one_of_the_classes_of_a_file_is_served_by_its_name(tmp_path: Path) -> None:
    app = write(tmp_path / "app.py", PAIR)
    assert names(app) == ["first", "second"]
    assert names(Path(f"{app}:Second")) == ["second"]
    assert [name_of(type(model)) for model in understudies(Path(f"{app}:Second"))] == ["second"]


def test_a_name_that_is_not_in_the_file_is_told_with_those_that_are(tmp_path: Path) -> None:
    app = write(tmp_path / "app.py", PAIR)
    assert complaint(Path(f"{app}:Third")) == f"{app} has no Third; it has First, Second"


def test_a_class_is_served_by_the_name_of_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "shop" / "__init__.py", "")
    write(tmp_path / "shop" / "labels.py", "LABELS = ['a']")
    app = write(tmp_path / "shop" / "models.py", "from .labels import LABELS\n" + dedent(PAIR))
    monkeypatch.chdir(tmp_path)
    assert resolved(Path("shop.models:First")) == Path(f"{app}:First")
    assert names(resolved(Path("shop.models:First"))) == ["first"]
    with pytest.raises(SetupError, match=r"there is no module shop\.model in"):
        check_target(Path("shop.model:First"))


FUNCTION = '''
    def greet(name: str, times: int = 1) -> dict:
        """Say hello."""
        return {"hello": [name] * times}
'''


def test_a_plain_typed_function_is_a_model(tmp_path: Path) -> None:
    (model,) = load(write(tmp_path / "hello.py", FUNCTION))
    request = type(model).Request
    assert request is not None
    assert name_of(type(model)) == "greet"
    (answer,) = model.infer([request(name="you", times=2)])
    assert model.finish(answer, None) == {"hello": ["you", "you"]}


def test_a_function_of_bytes_takes_the_raw_body(tmp_path: Path) -> None:
    (model,) = load(write(tmp_path / "hello.py", "def size(body: bytes) -> int:\n    return len(body)\n"))
    assert type(model).Request is None
    assert model.infer([b"abc"]) == [3]


def test_a_function_that_fails_fails_for_its_own_request_alone(tmp_path: Path) -> None:
    (model,) = load(write(tmp_path / "hello.py", "def half(x: int) -> float:\n    return 1 / x\n"))
    request: Any = type(model).Request
    good, bad = model.infer([request(x=2), request(x=0)])
    assert model.finish(good, None) == 0.5
    with pytest.raises(ZeroDivisionError):
        model.finish(bad, None)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def f(x):\n    return x\n", "parameter 'x' has no type; write for example `x: str`"),
        ("def f(*x: int):\n    return x\n", "name each parameter"),
        ("async def f(x: int):\n    return x\n", "plain `def`"),
        ("async def f(x: int):\n    yield x\n", "plain `def`"),
        ("def f(x: bytes, y: int):\n    return x\n", "one `bytes` parameter"),
        ("def f(x: type):\n    return x\n", "use plain types"),
        ("def f(x: int): ...\ndef g(x: int): ...\n", "2 functions; say which one to serve"),
        ("x = 1\n", "add a class derived from timebound.Model, or a function with types"),
    ],
)
def test_a_file_whose_function_cannot_be_served_is_told_why(tmp_path: Path, code: str, words: str) -> None:
    assert words in complaint(write(tmp_path / "hello.py", code))


def test_no_request_sees_what_another_did_to_a_default(tmp_path: Path) -> None:
    code = "def f(x: str, seen: dict = {'all': []}) -> dict:\n    seen['all'].append(x)\n    return seen\n"
    file = write(tmp_path / "hello.py", code)
    assert [tb.testing.ask(file, {"x": x}) for x in "ab"] == [{"all": ["a"]}, {"all": ["b"]}]


def test_several_files_are_served_together(tmp_path: Path) -> None:
    app, file = write(tmp_path / "one" / "app.py", ECHO), save_doubler(tmp_path / "doubler.onnx")
    other = write(tmp_path / "two" / "app.py", ECHO.replace("Echo", "Other"))
    target = together([app, file, other])
    assert names(target) == ["echo", "doubler", "other"]
    assert [name_of(type(model)) for model in understudies(target)] == ["echo", "other"]
    assert each_of(resolved(target)) == [app.resolve(), file.resolve(), other.resolve()]


def test_names_are_unique_across_them(tmp_path: Path) -> None:
    one, two = (write(tmp_path / name / "app.py", ECHO) for name in ("one", "two"))
    told = complaint(together([one, two]))
    assert told == f"two models in {one}, {two} have the name 'echo'; give one of them another"
    assert complaint(together([one, one])) == f"{one} is given twice"


def test_a_folder_of_models_is_served_alone(tmp_path: Path) -> None:
    save_doubler(tmp_path / "models" / "doubler" / "1" / "model.onnx")
    app = write(tmp_path / "app.py", ECHO)
    assert "is served alone" in complaint(together([app, tmp_path / "models"]))
    assert "does not exist" in complaint(together([app, tmp_path / "nothing.py"]))
