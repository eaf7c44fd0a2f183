"""`python -m mbxctl`: the same as the installed script."""

import sys

from mbxctl.main import main

if __name__ == "__main__":
    sys.exit(main())
