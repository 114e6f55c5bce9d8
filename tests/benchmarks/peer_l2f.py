"""l2f 2.0.18, the simulator of "Learning to Fly in Seconds" (C++, RK4), as a contestant of simulators.py."""

import l2f
import numpy as np
from stepping import serve

LARGEST = 8192  # the package is compiled for batches of powers of two up to this
HOVER = 0.452  # action of its Crazyflie


def batch(num):
    """A batch of hovering vehicles: `step()` and `observe()`."""
    vector, device = l2f.vector_selector[num], l2f.Device()
    rng, env, parameters = vector.VectorRng(), vector.VectorEnvironment(), vector.VectorParameters()
    states = [vector.VectorState(), vector.VectorState()]
    vector.initialize_rng(device, rng, 0)
    vector.initialize_environment(device, env)
    vector.initial_parameters(device, env, parameters)
    vector.initial_state(device, env, parameters, states[0])
    action = np.full((num, env.ACTION_DIM), HOVER, np.float32)
    observation = np.zeros((num, env.OBSERVATION_DIM), np.float32)

    def step():
        vector.step(device, env, parameters, states[0], action, states[1], rng)
        states.reverse()  # instead of copying them

    def observe():
        vector.observe(device, env, parameters, states[0], observation, rng)

    return step, observe


def batches(num):
    return [batch(min(num, LARGEST)) for _ in range(-(-num // LARGEST))]


def step(num):
    made = batches(num)

    def advance():
        for one, _ in made:
            one()

    return advance


def step_and_observe(num):
    made = batches(num)

    def advance():
        for one, observe in made:
            one()
            observe()

    return advance


if __name__ == "__main__":
    serve({"step": step, "step and observe": step_and_observe})
