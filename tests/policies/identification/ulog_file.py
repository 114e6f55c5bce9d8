"""Writes PX4's logs (ULog, version 1), as its documentation describes the format."""

import struct

import numpy as np

CODES = {"float": "f", "uint64_t": "Q", "bool": "?", "int32_t": "i"}
FLIP = np.array([1.0, -1.0, -1.0])
# PX4's rotors of a quadrotor x: forward, right; and which of ours (front-right, back-right, back-left, front-left).
PLACES = ((1.0, 1.0), (-1.0, -1.0), (1.0, -1.0), (-1.0, 1.0))
OURS = [0, 2, 3, 1]


def message(kind, content):
    return struct.pack("<HB", len(content), ord(kind)) + content


def ulog(topics, parameters=()):
    """The bytes of a log. `topics`: name -> (fields "float[3] xyz" ..., time in s (n,), rows (n, numbers))."""
    text = [b"ULog\x01\x12\x35\x01" + struct.pack("<Q", 0), message("B", bytes(40))]
    for name, value in parameters:
        key = f"{'int32_t' if isinstance(value, int) else 'float'} {name}".encode()
        text.append(
            message("P", bytes([len(key)]) + key + struct.pack("<i" if isinstance(value, int) else "<f", value))
        )
    rows = []
    for number, (name, (fields, time, values)) in enumerate(topics.items()):
        text.append(message("F", f"{name}:{';'.join(('uint64_t timestamp', *fields))};".encode()))
        rows += [(t, number, row, fields) for t, row in zip(time, values, strict=True)]
    text += [message("A", struct.pack("<BH", 0, number) + name.encode()) for number, name in enumerate(topics)]
    for t, number, row, fields in sorted(rows, key=lambda each: each[:2]):
        codes = ""
        for field in fields:
            kind, _, count = field.split()[0].partition("[")
            codes += CODES[kind] * int(count.rstrip("]") or 1)
        told = [bool(v) if c == "?" else float(v) for c, v in zip(codes, row, strict=True)]
        text.append(message("D", struct.pack(f"<HQ{codes}", number, round(1e6 * t), *told)))
    return b"".join(text)


def as_px4(log, factor=0.0, states=1):
    """Topics and parameters of a flight of ours, every `states`-th row of the states, in PX4's axes and order."""
    u = log["motor_command"][:, OURS]
    time, some = log["time"] + 3.0, slice(None, None, states)
    q = log["quaternion"] * np.array([1.0, *FLIP])
    q[10:20] *= -1.0  # the same attitudes
    topics = {
        "actuator_motors": (("float[4] control",), time, factor * u**2 + (1.0 - factor) * u),
        "vehicle_angular_velocity": (("float[3] xyz",), time, log["angular_velocity"] * FLIP),
        "vehicle_attitude": (("float[4] q",), time[some], q[some]),
        "vehicle_local_position": (
            ("float vx", "float vy", "float vz"),
            time[some],
            (log["linear_velocity"] * FLIP)[some],
        ),
    }
    places = [(f"CA_ROTOR{k}_P{axis}", 0.1 * PLACES[k][i]) for k in range(4) for i, axis in enumerate("XY")]
    return topics, [("CA_ROTOR_COUNT", 4), *places, ("THR_MDL_FAC", factor)]
