"""`python -m ld3`."""

from ld3.cli import main

if __name__ == "__main__":
    main()
