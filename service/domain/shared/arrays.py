"""Type aliases of the arrays that the models, the policies and the solver exchange."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
NumberArray: TypeAlias = NDArray[Any]
"""Array of integers or floats, for functions that accept both."""
