"""A mark for tests of the compiled core, which is missing where it could not be built."""

import pytest

from matryo.compiled import NUMPY, isa

needs_core = pytest.mark.skipif(isa() == NUMPY, reason="needs the compiled core")
