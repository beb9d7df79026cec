"""`python -m radixlang`: the `radixlang` command."""

import sys

from radixlang.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
