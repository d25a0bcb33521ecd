"""`python -m fedjax_mm.cli`."""

import sys

from fedjax_mm.cli import main

if __name__ == "__main__":
    sys.exit(main())
