"""l2f 2.0.18, the simulator in which the published policy was trained, as a physics engine for foundation.py.

A request on stdin is two arrays (`arrays.py`): what to do () text, and values (n, k) float64. The answer on stdout is
the states (n, 17) float32: position, quaternion (w x y z), velocity (world), body rate (body), rotor speed 0..1.

    vehicles  mass, inertia 3, rotor position 8, rotor direction 4, thrust curve 4 x 3, torque ratio, rise and fall
              time, standard deviation of a constant force per axis, largest start position per axis; states at rest
    reset     the states (n, 17)
    starts    states as the package itself draws them (also the constant force); the values do not matter
    step      commands (n, 4) in 0..1, held for 10 ms
"""

import json
import sys

import l2f
import numpy as np
from arrays import receive, send

DEVICE, ENVIRONMENT, RNG = l2f.Device(), l2f.Environment(), l2f.Rng()
PARTS = {"position": 3, "orientation": 4, "linear_velocity": 3, "angular_velocity": 3, "rpm": 4}


def vehicle(values):
    """The package's parameters of one vehicle."""
    parameters = l2f.Parameters()
    l2f.initial_parameters(DEVICE, ENVIRONMENT, parameters)
    tree = json.loads(l2f.parameters_to_json(DEVICE, ENVIRONMENT, parameters))
    sizes = (1, 3, 8, 4, 12, 1, 1, 1, 1, 1)
    mass, inertia, position, direction, curve, ratio, rise, fall, force, start = np.split(values, np.cumsum(sizes)[:-1])
    tree["dynamics"] |= {
        "mass": mass[0],
        "J": np.diag(inertia).tolist(),
        "J_inv": np.diag(1.0 / inertia).tolist(),
        "rotor_positions": [[x, y, 0.0] for x, y in position.reshape(4, 2).tolist()],
        "rotor_torque_directions": [[0.0, 0.0, d] for d in direction],
        "rotor_thrust_coefficients": curve.reshape(4, 3).tolist(),
        "rotor_torque_constants": [ratio[0]] * 4,
        "rotor_time_constants_rising": [rise[0]] * 4,
        "rotor_time_constants_falling": [fall[0]] * 4,
    }
    tree["disturbances"]["random_force"]["std"] = force[0]
    tree["mdp"]["init"]["max_position"] = start[0]
    l2f.parameters_from_json(DEVICE, ENVIRONMENT, json.dumps(tree), parameters)
    return parameters


class Batch:
    """Vehicles flown one after the other; a step of one takes a microsecond."""

    def vehicles(self, values):
        l2f.initialize_rng(DEVICE, RNG, 0)
        self.parameters = [vehicle(row) for row in values]
        self.states = [l2f.State() for _ in values]
        self.next = l2f.State()
        self.starts(values)

    def starts(self, values):
        for parameters, state in zip(self.parameters, self.states, strict=True):
            l2f.sample_initial_state(DEVICE, ENVIRONMENT, parameters, state, RNG)

    def reset(self, values):
        for state, row in zip(self.states, values, strict=True):
            for name, part in zip(PARTS, np.split(row, np.cumsum(list(PARTS.values()))[:-1]), strict=True):
                setattr(state, name, part.tolist())

    def step(self, values):
        for parameters, state, action in zip(self.parameters, self.states, (2.0 * values - 1.0).tolist(), strict=True):
            l2f.step(DEVICE, ENVIRONMENT, parameters, state, action, self.next, RNG)
            state.assign(self.next)

    def read(self):
        return np.array([np.concatenate([getattr(s, name) for name in PARTS]) for s in self.states], np.float32)


def main():
    """Answer until stdin is closed."""
    l2f.initialize_environment(DEVICE, ENVIRONMENT)
    batch = Batch()
    jobs = {"vehicles": batch.vehicles, "reset": batch.reset, "starts": batch.starts, "step": batch.step}
    while (what := receive(sys.stdin.buffer)) is not None:
        jobs[str(what)](receive(sys.stdin.buffer))
        send(sys.stdout.buffer, batch.read())


if __name__ == "__main__":
    main()
