"""The table of operators in the docs is what the generator's tables say.

`python -m tests.deploy.codegen.test_operator_table` writes it anew.
"""

from pathlib import Path

from deploy.codegen.elementwise import ELEMENTWISE, SPECIAL
from deploy.codegen.lowering.table import MADE_OF_OTHERS
from deploy.codegen.moves import LOOKUPS, MOVES
from deploy.codegen.operators import DENSE, POOLS, SUPPORTED
from deploy.codegen.reductions import ALONG, TOTALS
from deploy.trust.onnx_layers import OPERATORS
from tests.deploy.codegen.test_every_operator import BEFORE

PAGE = Path(__file__).parents[3] / "docs" / "microcontroller.md"
BEGIN, END = "<!-- table: python -m tests.deploy.codegen.test_operator_table -->", "<!-- end of table -->"


def table() -> str:
    """By how they become C."""
    elementwise = {*ELEMENTWISE, *SPECIAL}
    layers = {*DENSE, "ConvTranspose", "GRU", "LSTM", "RNN"}
    own = elementwise | layers | MOVES.keys() | TOTALS.keys() | ALONG | POOLS
    rows = {
        "one loop for as many as follow each other": elementwise,
        "products with stored weights: float32, float16, int8 or w8a8": layers,
        "other names for the same memory, or copies": set(MOVES),
        "of these, with indices computed in flight too": LOOKUPS,
        "one number per line, along any axes": set(TOTALS),
        "along one axis": ALONG,
        "pools over one or two dimensions": POOLS,
        "made of the others": MADE_OF_OTHERS.keys() - own,
        "computed beforehand, as all that is constant": BEFORE,
    }
    lines = ["| in C | operators |", "|---|---|"]
    return "\n".join([*lines, *(f"| {how} | {', '.join(sorted(names))} |" for how, names in rows.items())])


def test_the_docs_have_the_table() -> None:
    written = PAGE.read_text().split(BEGIN)[1].split(END)[0].strip()
    assert written == table(), f"run: python -m {__name__}"


def test_whatever_a_policy_file_may_use_is_in_it() -> None:
    assert set(OPERATORS) == SUPPORTED | BEFORE


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}")
