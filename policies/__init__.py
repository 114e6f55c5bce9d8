"""Learning, evaluation and export: from a task in simulation to one policy file. Never imported on a robot."""

import os

# numpy's matrices are small here: its threads cost more than they bring, and beside a busy process they hardly advance.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
