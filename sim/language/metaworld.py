"""Meta-World in words: patterns of sentences, `(a|b)` one of both; what evaluations draw is worded differently."""

from __future__ import annotations

from typing import NamedTuple


class Phrases(NamedTuple):
    """Patterns of the sentences that ask for a task."""

    learned: tuple[str, ...]
    held_out: tuple[str, ...]
    opposite: str = ""


PHRASES = {
    "metaworld/reach-v3": Phrases(
        (
            "(reach|touch|go to|move to) the (red |)(marker|ball|target)",
            "(move|bring) the (hand|gripper) to the red (marker|ball|dot)",
        ),
        ("(put|hold) the hand at the (red spot|red sphere)", "travel to the (red point|goal)"),
    ),
    "metaworld/push-v3": Phrases(
        (
            "(push|slide|shove) the (puck|red block|cylinder) to the (green marker|green target|goal)",
            "(push|slide) the puck (over |along the table )to the green dot",
        ),
        (
            "move the (puck|red cylinder) across the table to the green spot",
            "nudge the puck onto the (goal|green point)",
        ),
    ),
    "metaworld/pick-place-v3": Phrases(
        (
            "(pick up|grasp|grab|lift) the (puck|red block) and (put|place) it at the blue (marker|target)",
            "(lift|take) the cylinder and (carry|bring) it to the blue (dot|goal)",
        ),
        (
            "(raise|take hold of) the puck and move it to the blue spot",
            "pick the (cylinder|object) up and set it down at the (blue point|blue sphere)",
        ),
    ),
    "metaworld/door-open-v3": Phrases(
        (
            "(open|pull open|swing open) the (door|safe door|cabinet door)(| by its handle)",
            "(pull|swing) the (door|safe door) open",
        ),
        ("get that door opened", "(pull on the handle|draw the handle back) until the door is open"),
        "metaworld/door-close-v3",
    ),
    "metaworld/door-close-v3": Phrases(
        (
            "(close|push shut|shut) the (door|safe door|cabinet door)(| by its handle)",
            "(push|swing) the (door|safe door) (closed|shut)",
        ),
        ("get that door closed", "(push on the handle|press the handle back) until the door is closed"),
        "metaworld/door-open-v3",
    ),
    "metaworld/drawer-open-v3": Phrases(
        (
            "(open|pull open|slide open) the (drawer|green drawer)(| by its handle)",
            "(pull|slide) the (drawer|green drawer) (out|open)",
        ),
        ("get that drawer opened", "(pull on the handle|draw the handle back) until the drawer is open"),
        "metaworld/drawer-close-v3",
    ),
    "metaworld/drawer-close-v3": Phrases(
        (
            "(close|push shut|shut) the (drawer|green drawer)(| by its handle)",
            "(push|slide) the (drawer|green drawer) (in|closed|shut)",
        ),
        ("get that drawer closed", "(push on the handle|press the handle back) until the drawer is closed"),
        "metaworld/drawer-open-v3",
    ),
    "metaworld/button-press-topdown-v3": Phrases(
        (
            "(press|push|hit) the (button|red button)(| from above| on the box)",
            "(press|push) (down on the|down the) (button|red button)",
        ),
        ("(lower|move) the hand onto the red knob", "press the (switch|red knob) down"),
    ),
    "metaworld/peg-insert-side-v3": Phrases(
        (
            "(insert|put|push) the (peg|green peg) into the (hole|box|side hole)",
            "(plug|place) the (peg|stick) in the (hole|box)",
        ),
        ("stick the (peg|rod) in the box", "slide the green (peg|stick) into its hole from the side"),
    ),
    "metaworld/window-open-v3": Phrases(
        (
            "(open|slide open) the (window|glass window)(| by its handle)",
            "(push|slide) the window (open|to the right)",
            "move the window handle to (open it|the right)",
        ),
        ("get that window opened", "push the (handle|window handle) until the window is open"),
        "metaworld/window-close-v3",
    ),
    "metaworld/window-close-v3": Phrases(
        (
            "(close|shut|slide shut) the (window|glass window)(| by its handle)",
            "(push|slide) the window (closed|to the left)",
            "move the window handle to (close it|the left)",
        ),
        ("get that window closed", "push the (handle|window handle) until the window is closed"),
        "metaworld/window-open-v3",
    ),
    "metaworld/faucet-open-v3": Phrases(
        (
            "(open|turn on|switch on) the (faucet|tap|water tap)(| by its handle)",
            "turn the (faucet|tap) (on|open)",
        ),
        ("get that water running", "rotate the handle until the tap is open"),
        "metaworld/faucet-close-v3",
    ),
    "metaworld/faucet-close-v3": Phrases(
        (
            "(close|turn off|switch off) the (faucet|tap|water tap)(| by its handle)",
            "turn the (faucet|tap) (off|shut)",
        ),
        ("get that water stopped", "rotate the handle until the tap is closed"),
        "metaworld/faucet-open-v3",
    ),
}
