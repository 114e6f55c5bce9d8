"""Our engines as contestants of simulators.py: hovering Crazyflies under a held command, 10 ms per step."""

import importlib
import itertools

import numpy as np
from stepping import serve

from sim import engines, tasks
from sim.engines import flight
from sim.robots import robot

DT = 0.01  # s
OBSERVED = ("position", "rotation", "linear_velocity", "angular_velocity")  # 18 numbers


def hovering(name, num):
    """An engine with `num` vehicles hovering at 1 m, and the command that keeps them there."""
    crazyflie = robot("crazyflie")
    engine = engines.make(name, crazyflie, num, DT)
    hover = crazyflie.hover_command
    engine.reset(None, {"position": np.tile([0.0, 0.0, 1.0], (num, 1)), "rotor_speed": np.full((num, 4), hover)})
    return engine, np.full((num, 4), hover, np.float32)


def kernel(num):
    """The compiled step alone, on arrays that stay where they are."""
    engine, command = hovering("flight", num)
    engine.step(command)  # puts the command into the kernel's layout
    arrays = engine.state, engine.derived, engine._command
    return lambda: flight.step_blocks(*arrays, np.float32(DT), 1)


def step(name):
    """`Engine.step` as any caller sees it."""

    def prepare(num):
        engine, command = hovering(name, num)
        return lambda: engine.step(command)

    return prepare


def step_and_read(num):
    """`Engine.step`, then the 18 numbers that a policy sees of the vehicle."""
    engine, command = hovering("flight", num)

    def advance():
        engine.step(command)
        return [engine.read(signal) for signal in OBSERVED]

    return advance


def environment(num):
    """`VecEnv.step` of quad_hover: latency, noise, reward terms, termination, resets; torch tensors."""
    import torch

    from sim.vec_env import VecEnv

    torch.set_num_threads(1)
    task = tasks.make("quad_hover")
    env = VecEnv(task, num, lengths=(0.1, 1.0))
    action = torch.full((num, env.action_size), task.initial_action)
    return lambda: env.step(action)


def compiled(**how):
    """The compiled loop of quad_hover: one call, `compiled_loop.HORIZON` control steps."""

    def prepare(num):
        from compiled_loop import Loop

        return Loop(num, **how)

    return prepare


def through_gymnasium(name, scale, centre):
    """`step` as users of Gymnasium call it, and `reset` of what has ended; actions `centre` + `scale` * random."""

    def prepare(num):
        import gymnasium

        importlib.import_module("sim.gym")  # registers the name
        rng = np.random.default_rng(0)
        env = gymnasium.make(name) if num == 1 else gymnasium.make_vec(name, num, "vector_entry_point")
        env.reset(seed=0)
        actions = [(centre + scale * rng.uniform(-1.0, 1.0, env.action_space.shape)) for _ in range(64)]
        turn = itertools.cycle(action.astype(np.float32) for action in actions)

        def advance():
            _, _, terminated, truncated, _ = env.step(next(turn))
            if num == 1 and (terminated or truncated):
                env.reset()

        return advance

    return prepare


HOVER = tasks.make("quad_hover").initial_action
CONTESTANTS = {
    "gymnasium": through_gymnasium("sim2metal/quad_hover-v0", 0.1, HOVER),
    "half cheetah": through_gymnasium("HalfCheetah-v5", 1.0, 0.0),
    "kernel": kernel,
    "step": step("flight"),
    "step and read": step_and_read,
    "environment": environment,
    "compiled": compiled(),
    "compiled, no noise": compiled(noise=0.0),
    "compiled, short episodes": compiled(lengths=(0.1, 0.5)),
    "mujoco": step("mujoco"),
    "bullet": step("bullet"),
}

if __name__ == "__main__":
    serve(CONTESTANTS)
