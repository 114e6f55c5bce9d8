"""Learners that are continued from the state of another, which meanwhile goes on."""


def learned(whole, anew):
    """Its rows of metrics; and after each of them a fresh learner, of `anew()`, with the state that it then had."""
    rows, others = [], []
    for row in whole.learn():
        rows.append(row)
        others.append(anew())
        others[-1].load_state_dict(whole.state_dict())
    return rows, others
