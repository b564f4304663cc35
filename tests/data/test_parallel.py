"""Items in order from several threads, and no thread that stays behind."""

import threading
import time

import pytest

from truebatch.data.parallel import in_order, prefetched


class Spoiled(Exception):
    pass


def numbers(k, closed, spoiled=None):
    try:
        for i in range(k):
            if i == spoiled:
                raise Spoiled
            yield i
    finally:
        closed.append(True)


def late(i):
    time.sleep(0.002 * (i % 3))
    return i * i


@pytest.mark.parametrize("k", [0, 1, 2, 50])
@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_the_order_of_the_items(k, threads):
    closed = []
    assert list(in_order(late, numbers(k, closed), threads=threads)) == [i * i for i in range(k)]
    assert list(prefetched(numbers(k, closed))) == list(range(k))
    assert len(closed) == 2


@pytest.mark.parametrize("taken", [1, 2, 7])
def test_nothing_runs_once_it_is_closed(taken):
    before, closed = threading.active_count(), []
    for stream in (
        in_order(late, numbers(10**6, closed)),
        prefetched(numbers(10**6, closed)),
        in_order(late, prefetched(numbers(10**6, closed))),
    ):
        for _ in range(taken):
            next(stream)
        stream.close()
    assert threading.active_count() == before
    assert len(closed) == 3


def collect(stream, got):
    for item in stream:
        got.append(item)


@pytest.mark.parametrize("at", [0, 1, 5])
def test_an_error_is_raised_in_its_place_and_ends_every_thread(at):
    def spoil(i):
        if i == at:
            raise Spoiled
        return i

    before, closed = threading.active_count(), []
    for stream, want in (
        (in_order(spoil, numbers(10**6, closed)), range(at)),
        (in_order(spoil, prefetched(numbers(10**6, closed))), range(at)),
        (prefetched(numbers(10**6, closed, spoiled=at)), range(at)),
    ):
        got = []
        with pytest.raises(Spoiled) as caught:
            collect(stream, got)
        # The error, and with it the frames of all generators, is still alive here.
        assert caught.value.__traceback__ is not None
        assert got == list(want)
    assert threading.active_count() == before
    assert len(closed) == 3


def test_no_more_is_made_ahead_than_stated():
    made = []

    def counted():
        for i in range(1000):
            made.append(i)
            yield i

    stream = in_order(late, counted(), threads=2)
    next(stream)
    assert len(made) == 1
    next(stream)
    assert len(made) <= 6
    stream.close()
