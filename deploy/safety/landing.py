"""One landing, whoever asks for it: the control loop's thread, or the one that stops the driver meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Landing:
    """Of one flight. That a flight is done does not say that its vehicle is down."""

    def __init__(self) -> None:
        self.begun = False
        self.over = False  # it is down, fallen or somebody else's
        self._lock = threading.Lock()

    def once(self, land: Callable[[], None]) -> None:
        """Land it, unless that is over. Another thread's landing is waited for, and tried again where it has failed."""
        with self._lock:
            self.begun = True
            if not self.over:
                land()
                self.over = True
