"""`python -m radixlang.launch_server`: `radixlang serve` under the module name that SGLang scripts start."""

from __future__ import annotations

import sys

from radixlang.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["serve", "--require-model", *sys.argv[1:]]))
