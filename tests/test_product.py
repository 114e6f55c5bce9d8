"""TASKS x ALGORITHMS: every cell trains an update, exports, and is graded, or is refused by one sentence."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from deploy import PolicyFile
from policies.algorithms import ABILITIES, ALGORITHMS, DEMANDS, algorithm_class, check_needs
from policies.algorithms.bc import BaseConfig
from policies.evaluate import evaluate
from policies.models.export import export
from sim.env import NoExpertError, game_of
from sim.spec import pictures, tokens
from sim.tasks import TASKS, EngineTask, HasExpert, HasTeacher, agents_of, make
from sim.tasks.abilities import Differentiable, HasSensedReward, HasWords
from tests.policies.language.spoken_words import kept_encoder
from tests.test_tables import BASE, PRACTICE, SMALL, unaided

SEEN = "tests.policies.toy_sight:ToySight"  # a task that shows its policy pictures
WITHOUT_EYES = dict.fromkeys(("dagger", "hg_dagger"), "corrections are kept as numbers, but .* shows pictures")
WITHOUT_EYES["streaming"] = "streaming learns from numbers; .* shows pictures"
SHOWN = ("diffusion", "dsrl", "dsrl_na", "expo", "residual", "rlif", "rlpd", "wsrl")  # to whom an expert shows how
WITHOUT_WORDS = ("dsrl", "dsrl_na")  # which steer a base that was told: of a file
IN_SHORT = {"quad_hover", "arm_reach", "soccer_1v1", SEEN}  # one of each kind; the others take minutes together
SHORT: dict[str, dict[str, Any]] = {
    "quad_hover": {"episode_s": 3.0},
    "quad_track": {"episode_s": 2.0},
    "quad_any": {"episode_s": 2.0, "robot": "crazyflie"},  # of random vehicles there is no expert
    "quad_swarm": {"vehicles": 2, "episode_s": 1.0},
    "arm_reach": {"steps": 50},
    "reach": {"steps": 30},
    **{f"soccer_{k}v{k}": {"steps": 60, "opponent": "still"} for k in (1, 2, 5)},
    **{f"soccer_vision_{k}v{k}": {"steps": 60, "opponent": "still"} for k in (1, 2)},
    **{f"soccer_{how}{drill}": {"steps": 60} for how in ("", "vision_") for drill in ("seek", "keep")},
    **{f"soccer_{how}shoot": {"steps": 200, "opponent": "still"} for how in ("", "vision_")},
    # Its expert needs a trajectory planned, and a whole lap.
    **{
        f"quad_gate_race{how}": {
            "steps": 600,
            "track": "figure_eight",
            "reference": True,
            "plan_steps": 6,
            "vary": False,
        }
        for how in ("", "_vision")
    },
    "car_race": {"steps": 300, "tracks": 4},  # the lap of an expert, as demonstrations that all fail teach nothing
    "car_race_multi": {"steps": 400, "tracks": 4},
    "car_race_vision": {"steps": 300, "tracks": 4, "width": 16, "height": 16},
    "velocity": {"steps": 30, "standing": 1.0, "vary": 0.0},  # its expert stands
    **{name: {"steps": 60} for name in ("walk", "kick")},
    "get_up": {"steps": 400, "vary": 0.0},  # its expert is up by then
    "arm_words": {"steps": 60, "encoder": kept_encoder()},
    "traffic_eco": {"steps": 20, "warmup": 40, "places": 4},
}
# On a vehicle, dagger and rlpd are tried for all that learn from demonstrations; on an arm, each is.
FLOWN_BY_OTHERS = ("diffusion", "dsrl", "dsrl_na", "expo", "hg_dagger", "residual", "rlif", "wsrl")


def often(task: str, name: str) -> bool:
    """Whether `make test` has this cell."""
    return task in IN_SHORT and not (task == "quad_hover" and name in FLOWN_BY_OTHERS)


CELLS = [
    pytest.param(task, name, marks=() if often(task, name) else pytest.mark.long, id=f"{task}-{name}")
    for task, name in itertools.product([*TASKS, SEEN], ALGORITHMS)
]


def learner(task: Any, name: str) -> Any:
    """With a budget of about a second."""
    cls = algorithm_class(name)
    few = {**BASE, "updates": 5, "episodes": 3, "corruption": 0.0}
    wanted = {**PRACTICE, **few, "base": BaseConfig(**few), "total_steps": 200}
    if any(ability in cls.needs for ability in (EngineTask, Differentiable, HasTeacher, HasSensedReward, HasWords)):
        wanted = {**SMALL[name]}
    if "league" in wanted:
        wanted["league"] = game_of(task) is not None
    if agents_of(task) > 1:
        wanted["num_envs"] = 16 * agents_of(task)
    known = cls.Config.__dataclass_fields__
    kept = {key: value for key, value in wanted.items() if key in known}
    return cls(task, cls.Config(**kept | unaided(cls, few)), 0)


@pytest.mark.slow
@pytest.mark.parametrize(("task_name", "name"), CELLS)
def test_every_task_meets_every_algorithm(task_name: str, name: str, tmp_path: Path):
    check_cell(make(task_name, **SHORT.get(task_name, {})), name, tmp_path)


def check_cell(task: Any, name: str, tmp_path: Path) -> None:
    """One algorithm on one task: a file that is graded, or one sentence."""
    lacking = [ability for ability in algorithm_class(name).needs if not isinstance(task, ability)]
    if lacking:
        said = f"algorithm={name} needs a task with {ABILITIES[lacking[0]]}; {task.name} has none"
        with pytest.raises(ValueError, match=said):
            check_needs(name, algorithm_class(name), task)
        return
    takes = algorithm_class(name).takes
    if asked := [what for demand, (what, is_asked) in DEMANDS.items() if demand not in takes and is_asked(task)]:
        with pytest.raises(ValueError, match=f"algorithm={name} does not take {asked[0]}"):
            check_needs(name, algorithm_class(name), task)
        return
    check_needs(name, algorithm_class(name), task)
    if pictures(task.policy) and name in WITHOUT_EYES:
        with pytest.raises(ValueError, match=WITHOUT_EYES[name]):
            learner(task, name)
        return
    if tokens(task.policy) and name in WITHOUT_WORDS:
        with pytest.raises(ValueError, match="tells its policy in words, and no such base is cloned here"):
            learner(task, name)
        return
    if name == "advised_sac" and not isinstance(task, HasExpert):  # others than the expert might advise
        with pytest.raises(ValueError, match=f"{task.name} has no scripted expert"):
            learner(task, name)
        return
    algorithm = learner(task, name)
    if not isinstance(task, HasExpert) and name in SHOWN:
        with pytest.raises(NoExpertError, match=f"{task.name} has no scripted expert"):
            next(algorithm.learn())
        return
    next(algorithm.learn())
    export(algorithm.controller(), tmp_path / "policy.onnx", training={"algorithm": name})
    report = evaluate(PolicyFile.load(tmp_path / "policy.onnx"), task=task, episodes=2)
    assert report.episodes == 2 and report.engine == task.engine
