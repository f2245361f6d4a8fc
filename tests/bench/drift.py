"""Whether a figure of a long run rises, or only goes up and down: least squares over means of blocks of time.

Neighbouring samples know of each other (a problem holds its memory for a while), means of blocks hardly do; so their
scatter about the line says how well its slope is known. What rises is a figure whose slope is over 0 by more than
Student's t allows by chance once in 2000 times, and by more than `slack` over the whole run.
"""

import math

BLOCKS = 12
T_OF_ONE_IN_2000 = 4.587  # Student's t, BLOCKS - 2 degrees of freedom, one side


def block_means(samples):
    """[(time, value)] -> BLOCKS means of both, over equal spans of time."""
    first, last = samples[0][0], samples[-1][0]
    blocks = [[] for _ in range(BLOCKS)]
    for time, value in samples:
        blocks[min(int((time - first) / (last - first) * BLOCKS), BLOCKS - 1)].append((time, value))
    return [tuple(sum(column) / len(block) for column in zip(*block)) for block in blocks]


def line(points):
    """Slope of the least-squares line, and the standard error of it."""
    count = len(points)
    mean_x, mean_y = (sum(column) / count for column in zip(*points))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    residuals = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    return slope, math.sqrt(max(residuals, 0.0) / (count - 2) / spread)


class Drift:
    """What [(time in seconds, value)] do over their time."""

    def __init__(self, samples):
        self.seconds = samples[-1][0] - samples[0][0]
        self.slope, self._error = line(block_means(samples))  # a second
        self.uncertainty = T_OF_ONE_IN_2000 * self._error

    def rises(self, slack=0.0):
        return (self.slope - self.uncertainty) * self.seconds > slack
