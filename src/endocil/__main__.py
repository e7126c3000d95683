"""`python -m endocil` is the command `endocil`: for launchers such as torchrun, and where scripts are not on the PATH."""

from endocil.cli import main

if __name__ == "__main__":
    main()
