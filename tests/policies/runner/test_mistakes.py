"""Settings that were called otherwise: the error says what each is called now, on the command line and in old runs."""

import re
import sys

import pytest

from policies.algorithms import ALGORITHMS, algorithm_class
from policies.runner import config
from policies.runner.cli import main
from policies.runner.config import Options, SettingsError, compose
from policies.runner.mistakes import RENAMED

TOY = "algorithm=tests.policies.toy_algorithm:Toy"
PAIRS = [(old, new) for old, names in RENAMED.items() for new in names]


def where(old, new):
    """An algorithm that has the one and not the other, and what stands before the setting's name."""
    for algorithm in ALGORITHMS:
        made = algorithm_class(algorithm).Config()
        parts = {f"algorithm.{name}.": getattr(made, name, None) for name in ("base", "network")}
        for prefix, group in {"algorithm.": made, **parts, "": Options()}.items():
            if hasattr(group, new) and not hasattr(group, old):
                return algorithm, prefix
    raise AssertionError(f"no algorithm has a setting {new!r}")


def test_every_new_name_is_a_setting_where_the_old_one_is_none():
    for old, new in PAIRS:
        where(old, new)  # or fails


@pytest.mark.thinned(6)
@pytest.mark.parametrize(("old", "new"), PAIRS, ids=[" -> ".join(pair) for pair in PAIRS])
def test_an_old_name_gives_a_short_error_with_the_new_one(monkeypatch, capsys, old, new):
    algorithm, prefix = where(old, new)
    monkeypatch.setattr(sys, "argv", ["train", f"algorithm={algorithm}", f"{prefix}{old}=1"])
    with pytest.raises(SystemExit) as left:
        main(lambda settings: None)
    assert left.value.code == 2
    assert capsys.readouterr().err == f"error: '{prefix}{old}' is called {prefix}{new} now\n"


def test_an_old_name_that_still_means_something_is_taken():
    assert compose(["algorithm=apg", "algorithm.updates=3"]).algorithm_config.updates == 3
    assert compose(["algorithm=dsrl", "algorithm.base.horizon=2"]).algorithm_config.base.horizon == 2


@pytest.mark.parametrize(("new", "old"), [("evaluation_episodes: 200", "episodes: 200"), ("pause: 0.0", "calm: 0.0")])
def test_the_run_of_another_version_is_not_continued(monkeypatch, capsys, tmp_path, new, old):
    config.write(compose([TOY]), path := tmp_path / "config.yaml")
    path.write_text(path.read_text().replace(new, old))
    said = f"{path} is of another version and cannot be continued: "
    with pytest.raises(SettingsError, match=re.escape(said)):
        config.read(path, {"algorithm": TOY.partition("=")[2]})
    monkeypatch.setattr(sys, "argv", ["train", f"resume={tmp_path}", TOY])
    with pytest.raises(SystemExit) as left:
        main(lambda settings: None)
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {said}") and len(error.splitlines()) == 1
