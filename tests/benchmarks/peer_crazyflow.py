"""crazyflow 0.4.0 (JAX on the CPU) as a contestant of simulators.py."""

import jax
import numpy as np
from crazyflow.control import Control
from crazyflow.sim import Sim
from crazyflow.sim.integration import Integrator
from stepping import serve


def blocking_step(sim):
    def advance():
        sim.step()
        jax.block_until_ready(sim.data.states.pos)

    return advance


def default(num):
    """As it comes: Euler at 500 Hz under its attitude controller. A step is one of physics."""
    sim = Sim(n_worlds=num, control=Control.attitude)
    command = np.zeros((num, 1, 4), np.float32)
    command[..., 3] = 0.4  # N, about its weight
    sim.attitude_control(command)
    return blocking_step(sim)


def like_ours(num):
    """RK4 at 100 Hz under rotor speeds."""
    sim = Sim(n_worlds=num, control=Control.rotor_vel, integrator=Integrator.rk4, freq=100)
    sim.rotor_vel_control(np.full((num, 1, 4), 15000.0, np.float32))
    return blocking_step(sim)


if __name__ == "__main__":
    serve({"default": default, "rk4 100 Hz": like_ours})
