"""`python -m endocil` is the command `endocil`: for launchers such as torchrun, which start a module."""

from endocil.cli.main import main

if __name__ == "__main__":
    main()
