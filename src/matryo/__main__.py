"""``python -m matryo`` runs the command ``matryo``; ``torchrun -m matryo train …`` needs it."""

import sys

from matryo.cli import main

if __name__ == "__main__":
    sys.exit(main())
