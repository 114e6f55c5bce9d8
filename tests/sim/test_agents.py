"""Several agents in a world: who can step them, and that their rows are whole worlds."""

import numpy as np
import pytest

from deploy.drivers.simulated import Simulated
from policies.collect import episodes
from sim.conditions import Conditions
from sim.env import episode_numbers, evaluation_env, for_whole_worlds, make_env
from sim.tasks import agents_of, check_declared, make
from tests.policies.toy_reach import ToyReach


class Three(ToyReach):
    name = "three"
    agents, teams = 3, (0, 0, 1)


def test_rows_of_a_world_have_one_number_and_one_end():
    task = Three()
    assert agents_of(task) == 3 and agents_of(ToyReach()) == 1
    assert episode_numbers(task, 6, 4).tolist() == [4, 4, 4, 5, 5, 5]
    some = np.array([False, True, False, False, False, False])
    assert for_whole_worlds(3, some).tolist() == [True] * 3 + [False] * 3
    assert for_whole_worlds(1, some).tolist() == some.tolist()


def test_rows_must_be_whole_worlds():
    for opened in (
        lambda n: make_env(Three(), n, 0, several=True),
        lambda n: evaluation_env(Three(), n, 0, Conditions()),
        lambda n: Simulated(Three(), n),
    ):
        opened(6).close()
        with pytest.raises(ValueError, match="three has 3 agents in each world: the rows must be a multiple, got 4"):
            opened(4)


def test_who_takes_one_agent_at_a_time_says_so():
    with pytest.raises(ValueError, match="three has 3 agents in each world; this is done with one at a time"):
        next(episodes(Three(), lambda *_: {}, 3, 0))


def test_the_drivers_episodes_are_numbered_by_world(monkeypatch):
    driver, begun = Simulated(Three(), 6, first=5), []
    monkeypatch.setattr(driver.env, "reset", lambda rows, numbers: begun.append([*numbers]))
    driver.connect()
    assert begun == [[5, 5, 5, 6, 6, 6]]


def test_a_declaration_must_be_whole():
    task = Three()
    check_declared(task)
    task.teams = (0, 1)
    with pytest.raises(ValueError, match="'three' needs a world of its own and a team for each of its 3 agents"):
        check_declared(task)
    vehicle = make("quad_hover")
    vehicle.agents, vehicle.teams = 2, (0, 1)
    with pytest.raises(ValueError, match="'quad_hover' needs a world of its own"):
        check_declared(vehicle)
