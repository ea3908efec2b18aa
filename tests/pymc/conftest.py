"""PyTensor without a BLAS of its own, which it would warn of."""

from __future__ import annotations

import os

os.environ.setdefault("PYTENSOR_FLAGS", "blas__ldflags=")
