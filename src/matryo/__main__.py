"""``python -m matryo`` is the command ``matryo`` (what ``torchrun -m matryo train …`` starts)."""

import sys

from matryo.cli import main

if __name__ == "__main__":
    sys.exit(main())
