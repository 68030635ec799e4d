"""`python -m steppe`: the same as the command `steppe`."""

import sys

from steppe.cli import main

if __name__ == "__main__":
    sys.exit(main())
