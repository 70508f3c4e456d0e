"""A trend for host-bound models: the slower of two linear terms, with a rounded corner.

    t(b, r) = (h^n + g^n)^(1/n),  h = k5 + k6 b,  g = (k2 b + k3) / (r + k4)

h is the time of the host (launching kernels, one thread), which no share shortens, g that of the GPU.
iGniter's Eq 11 adds them; where the host launches ahead of the GPU they overlap and the longer one counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.latency.fitting.surface import Points
from controlplane.latency.protocol import FloatArray

CORNER = 6.0
"""n: large is sharp. On points left out of A100 profiles 4, 6 and 10 miss by 3.5, 3.3 and 3.2 %."""
LARGEST_OFFSET = 20.0


@dataclass(frozen=True, slots=True)
class Roofline:
    """Fitted non-negative coefficients (k2, k3, k5, k6) and k4: time falls with share, grows with batch."""

    share_offset: float
    coefficients: FloatArray

    @staticmethod
    def fit(points: Points) -> Roofline:
        """Least squares of log residuals; soft_l1 keeps single steps from bending the lines."""
        from scipy.optimize import least_squares

        work = float(np.median(points.time_ms * points.percent / points.batch))
        fastest = float(points.time_ms.min())
        scale = np.array([work, work, fastest, fastest / float(points.batch.max()), 1.0])

        def residual(x: FloatArray) -> FloatArray:
            value = _value(points.percent, points.batch, x * scale)
            return np.asarray(np.log(value / points.time_ms))

        found = least_squares(
            residual,
            x0=np.array([0.8, 0.2, 0.9, 0.2, 0.5]),
            bounds=(np.array([1e-3, 0.0, 1e-3, 0.0, 0.0]), np.array([50.0, 50.0, 5.0, 50.0, LARGEST_OFFSET])),
            loss="soft_l1",
            f_scale=0.05,
            max_nfev=200,
        )
        solution = found.x * scale
        return Roofline(float(solution[4]), solution[:4])

    def at(self, percent: FloatArray, batch: FloatArray) -> FloatArray:
        """Time in ms; shapes (n,)."""
        return _value(percent, batch, np.append(self.coefficients, self.share_offset))


def _value(percent: FloatArray, batch: FloatArray, k: FloatArray) -> FloatArray:
    gpu = (k[0] * batch + k[1]) / (percent + k[4])
    host = k[2] + k[3] * batch
    larger = np.maximum(gpu, host)
    # The larger one taken out keeps the powers finite.
    value: FloatArray = larger * ((gpu / larger) ** CORNER + (host / larger) ** CORNER) ** (1.0 / CORNER)
    return value
