"""`python -m derts` is the same as `derts`."""

from derts.cli import main

if __name__ == "__main__":
    main()
