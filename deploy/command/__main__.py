"""python -m deploy.command COMMAND [key=value ...]: the same as `sim2metal COMMAND`."""

import sys

from deploy.command import main

if __name__ == "__main__":
    sys.exit(main())
