"""Depth cameras and lidars in scenes of triangles, and clouds of points: saved, loaded, registered. Through Open3D.

Poses are (4, 4): from a sensor's axes (x ahead, y to the left, z up) to the world's, m.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any


def open3d() -> Any:
    """The library, which takes a second to import. ModuleNotFoundError says how to install it."""
    # Its wheel wants libusb from the system, for cameras that nobody asks of it here. A wheel has that, too.
    with contextlib.suppress(ImportError, OSError):
        import libusb_package

        ctypes.CDLL(str(libusb_package.get_library_path()), mode=ctypes.RTLD_GLOBAL)
    try:
        import open3d as library
    except ModuleNotFoundError as error:
        if error.name != "open3d":
            raise
        message = "open3d is not installed: pip install 'sim2metal[perception]'"
        raise ModuleNotFoundError(message, name="open3d") from error
    library.utility.set_verbosity_level(library.utility.VerbosityLevel.Error)
    return library
