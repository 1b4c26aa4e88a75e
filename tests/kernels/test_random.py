"""The random kernels: the upstream stream bit for bit, and whether normal values are normal."""

import numpy as np
import pytest

from toynn._kernels import random
from toynn.testing.cases.random import lcg_uniform

pytestmark = pytest.mark.kernels

N = 400_000  # standard error of a mean: 0.0016


def normal(n=N, seed=0, stream=0, std=1.0, n_threads=1):
    out = np.empty(n, np.float32)
    random.normal(out, seed, stream, std, n_threads=n_threads)
    return out


@pytest.mark.parametrize("seed", [0, 1, 42, 2**31 - 1, 2**31, 2**70 + 5, -3])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_lcg_is_the_plain_loop_bit_for_bit(seed, n_threads):
    expected, after = lcg_uniform(9001, seed, 0.02)
    out = np.empty(9001, np.float32)
    assert random.lcg_uniform(out, seed, 0.02, n_threads=n_threads) == after
    assert out.tobytes() == expected.astype(np.float32).tobytes()


def test_lcg_first_values_of_seed_0():
    out = np.empty(3, np.float32)
    assert random.lcg_uniform(out, 0) == 654583775
    # states 12345, 1406932606 and 654583775, each >> 8, / 2^23, - 1
    assert out.tolist() == [s / 8388608 - 1 for s in (48, 5495830, 2556967)]


def test_lcg_arrays_continue_one_stream():
    whole, parts = np.empty(100, np.float32), np.empty(100, np.float32)
    end = random.lcg_uniform(whole, 7)
    state = 7
    for piece in (parts[:1], parts[1:1], parts[1:64], parts[64:]):
        state = random.lcg_uniform(piece, state)
    assert state == end
    assert whole.tobytes() == parts.tobytes()


@pytest.mark.parametrize("seed", [0, 1, 2, 2**63, 2**64 - 1])
def test_normal_moments(seed):
    x = normal(seed=seed).astype(np.float64)
    assert abs(x.mean()) < 0.007
    assert abs(x.var() - 1) < 0.01
    assert abs((x**3).mean()) < 0.02
    assert abs((x**4).mean() - 3) < 0.07
    assert 4 < np.abs(x).max() < 7


def test_normal_has_normal_quantiles():
    quantiles = np.quantile(normal(), [0.001, 0.025, 0.1587, 0.5, 0.8413, 0.975, 0.999])
    expected = [-3.0902, -1.9600, -1, 0, 1, 1.9600, 3.0902]
    assert quantiles == pytest.approx(expected, abs=0.06)


def test_std_scales():
    assert normal(100, std=0.02) == pytest.approx(0.02 * normal(100), rel=1e-6)


def correlation(a, b):
    return abs(np.corrcoef(a, b)[0, 1])


def test_streams_seeds_blocks_and_neighbours_are_not_correlated():
    limit = 5 / np.sqrt(N)
    x = normal()
    assert correlation(x, normal(seed=1)) < limit
    assert correlation(x, normal(stream=1)) < limit
    assert correlation(normal(seed=1), normal(stream=1)) < limit
    assert correlation(x[0::2], x[1::2]) < 2 * limit  # both values of a pair
    assert correlation(x[0::2] ** 2, x[1::2] ** 2) < 2 * limit
    assert correlation(x[:-1], x[1:]) < limit
    assert correlation(x[:-4096], x[4096:]) < limit


def test_no_two_seeds_and_streams_start_alike():
    starts = [normal(4, seed, stream) for seed in range(40) for stream in range(40)]
    assert len(np.unique(starts, axis=0)) == 1600


def test_a_shorter_array_is_the_start_of_a_longer_one():
    assert normal(5001).tobytes() == normal(9000)[:5001].tobytes()


def uniform(n=N, seed=0, stream=0, bound=1.0, n_threads=1):
    out = np.empty(n, np.float32)
    random.uniform(out, seed, stream, bound, n_threads=n_threads)
    return out


def test_uniform_values_are_uniform():
    x = uniform().astype(np.float64)
    assert np.quantile(x, [0.1, 0.25, 0.5, 0.9]) == pytest.approx([-0.8, -0.5, 0, 0.8], abs=0.01)
    assert 0.9999 < np.abs(x).max() <= 1
    assert correlation(x[:-1], x[1:]) < 5 / np.sqrt(N)
    assert correlation(x[:-4096], x[4096:]) < 5 / np.sqrt(N)
    assert uniform(100, bound=0.02) == pytest.approx(0.02 * uniform(100), rel=1e-6)


def test_uniform_values_hang_on_seed_and_stream_and_not_on_threads_or_length():
    assert uniform(9000, n_threads=3).tobytes() == uniform(9000).tobytes()
    assert uniform(5001).tobytes() == uniform(9000)[:5001].tobytes()
    starts = [uniform(4, seed, stream) for seed in range(20) for stream in range(20)]
    assert len(np.unique(starts, axis=0)) == 400


def test_bad_calls_are_refused():
    with pytest.raises(ValueError, match="n_threads must be 1 to 1024; got 0"):
        normal(3, n_threads=0)
    with pytest.raises(ValueError, match=r"random.uniform: .*n_threads must be 1 to 1024; got 0"):
        uniform(3, n_threads=0)
    with pytest.raises(TypeError):
        normal(3, seed=0.5)
    with pytest.raises(ValueError, match="Buffer dtype mismatch"):
        random.normal(np.empty(3), 0)
