"""Lines to chips, whatever is at their other end."""

import os
import tty

import pytest

from deploy.mcu import ports
from deploy.mcu.ports import LinkError, SerialPort


def test_a_board_that_takes_no_bytes_any_more_is_an_error(monkeypatch):
    """Nobody reads at the other end, and what lies between is full."""
    monkeypatch.setattr(ports, "FULL_S", 0.1)
    master, slave = os.openpty()
    tty.setraw(master)
    line = SerialPort(os.ttyname(slave))
    try:
        with pytest.raises(LinkError, match="takes no bytes any more: does the board hang"):
            line.write(bytes(1 << 20))
    finally:
        line.close()
        os.close(master)
        os.close(slave)
