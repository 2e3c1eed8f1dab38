"""How the connections of an ingress process end when it stops: those without a request, and no other."""

import gevent
import gevent.event

from web.gunicorn_worker import _Idle


class Connection:
    """A greenlet that waits for a request and serves it for a moment."""

    def __init__(self) -> None:
        self.among: set[_Idle] = set()
        self.came = gevent.event.Event()
        self.request, self.served = False, False
        self.greenlet = gevent.spawn(self._run)
        gevent.sleep(0)
        (self.idle,) = self.among

    def _run(self) -> None:
        with _Idle(self.among, 60):
            self.request = self.came.wait()
        if self.request:
            gevent.sleep(0.01)
            self.served = True


def test_a_connection_without_a_request_is_ended_at_once():
    connection = Connection()
    connection.idle.end()
    connection.greenlet.get(timeout=5)
    assert not connection.request
    assert connection.among == set()


def test_a_request_that_comes_at_the_moment_of_the_stop_is_served():
    connection = Connection()
    connection.came.set()
    connection.idle.end()
    connection.greenlet.get(timeout=5)
    assert connection.served


def test_a_connection_is_ended_twice_as_it_is_once():
    connection = Connection()
    connection.idle.end()
    connection.idle.end()
    connection.greenlet.get(timeout=5)
    assert not connection.request


def test_a_connection_that_idles_too_long_ends_by_itself():
    among: set[_Idle] = set()
    with _Idle(among, 0.01):
        gevent.sleep(5)
        raise AssertionError("the time was not over")
    assert among == set()
