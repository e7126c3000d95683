"""`python -m endocil` is the command `endocil`: for launchers such as torchrun, which start a module."""

import os
import sys

if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
        del sys.path[0]  # by -m; the working folder is no place to import from (registry.py)

    from endocil.cli.main import main

    main()
