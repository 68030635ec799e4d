"""`python -m tensorforce_client`: the same as the command `tfcli`."""

import sys

from steppe.cli import main

if __name__ == "__main__":
    sys.exit(main())
