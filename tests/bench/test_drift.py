"""The rule by which a soak is judged, on made-up figures whose line is known in closed form."""

import math
import random

import pytest

from drift import BLOCKS, T_OF_ONE_IN_2000, Drift, block_means, line


def test_a_line_is_found_exactly():
    slope, error = line([(x, 5 + 3 * x) for x in range(BLOCKS)])
    assert slope == pytest.approx(3, abs=1e-12) and error == pytest.approx(0, abs=1e-7)


def test_alternating_residuals_in_closed_form():
    """y = 2 x + (-1)^x at 0 to 11: sum (x - mean)^2 is n (n^2 - 1) / 12 = 143, sum x (-1)^x is -6."""
    slope, error = line([(x, 2 * x + (-1) ** x) for x in range(12)])
    assert slope == pytest.approx(2 - 6 / 143)
    assert error == pytest.approx(math.sqrt((12 - 36 / 143) / 10 / 143))


def test_blocks_are_equal_spans_of_time():
    """Times 0 to 23.99 in blocks of 2: the mean of a block's times is its middle, however values lie."""
    means = block_means([(i / 100, i // 200) for i in range(2400)])
    assert [value for _, value in means] == list(range(BLOCKS))
    assert [time for time, _ in means] == pytest.approx([2 * block + 0.995 for block in range(BLOCKS)])


def noise(chance, per_second, seconds=90, size=20e6):
    """A sample each half second of what goes up and down with a memory of some seconds, and rises by `per_second`."""
    value, samples = 0.0, []
    for tick in range(2 * seconds):
        value = 0.8 * value + chance.gauss(0, size)
        samples.append((tick / 2, 150e6 + value + per_second * tick / 2))
    return samples


def test_noise_does_not_rise():
    alarms = sum(Drift(noise(random.Random(seed), 0)).rises() for seed in range(400))
    assert alarms <= 4  # one in 2000 were the blocks independent; they nearly are


def test_what_rises_is_seen():
    for seed in range(50):
        assert Drift(noise(random.Random(seed), 4e6)).rises(slack=4e6)
        assert not Drift(noise(random.Random(seed), -4e6)).rises()


def test_slack_is_over_the_whole_run():
    samples = [(second, 1000 + second) for second in range(101)]  # 100 more at the end, without noise
    assert Drift(samples).rises(slack=99) and not Drift(samples).rises(slack=101)
    assert not Drift([(second, 7) for second in range(101)]).rises()
    assert T_OF_ONE_IN_2000 > 4
