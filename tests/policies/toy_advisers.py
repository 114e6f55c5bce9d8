"""An adviser that does what a file in its folder says: the ways in which one can fail."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from policies.advisers import Answer

NAME = "tests.policies.toy_advisers:Fickle"


class Fickle:
    """It would have done a tenth of the position that it is told. `config.policy` is the folder."""

    def __init__(self, task, config):
        self.folder = Path(config.policy)

    def told(self, name):
        return (self.folder / name).exists()

    def open(self):
        if self.told("unready"):
            raise RuntimeError("the model is nowhere")

    def advise(self, signals, done):
        action = 0.1 * signals["position"]
        weight, score = np.ones(len(done)), signals["position"][:, 0]
        if self.told("nan"):
            action[0] = np.nan
        if self.told("beyond"):
            action[0] = 1.5
        if self.told("weight"):
            weight[0] = -1.0
        if self.told("score"):
            score = np.full(len(done), np.inf)
        if self.told("shape"):
            action = action[:, :1]
        if self.told("fewer"):
            action, weight, score = action[1:], weight[1:], score[1:]
        if self.told("words"):
            return Answer("full speed ahead", weight, score)
        if self.told("raise"):
            raise ArithmeticError("out of ideas")
        if self.told("noise"):
            os.write(int(sys.argv[1]), bytes(range(256)) * 8)
        if self.told("leave"):
            os._exit(3)
        if self.told("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.told("hang"):
            time.sleep(1000.0)
        return Answer(action, weight, score)
