"""Tests of the threads that resolve the hosts of webhooks: a name server that is silent delays only its own tenant."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.support.processes import ROOT, wait_for
from web.webhooks import post as naming
from web.webhooks.post import AT_ONCE_OF_TENANT, MAX_THREADS, NameResolver, NoThreadFree, NotResolved, look_up

ADDRESS = "192.0.2.1"


class NameServers:
    """Name servers. The one for `silent` answers only at the end."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.asked: list[str] = []

    def resolve(self, host: str, _port: int) -> list[str]:
        self.asked.append(host)
        if host == "silent":
            assert self.may_answer.wait(60)
        return [] if host == "nowhere" else [ADDRESS]


@pytest.fixture
def servers() -> Iterator[NameServers]:
    servers = NameServers()
    yield servers
    servers.may_answer.set()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a try give up at once if it has to wait for an answer."""
    monkeypatch.setattr(naming, "RESOLVE_S", 0.0)


def hold(resolver: NameResolver, servers: NameServers, tenants: list[str]) -> None:
    """Let each of the tenants, which may be named more than once, wait for a silent name server."""
    before = len(servers.asked)

    def ask(tenant: str) -> None:
        # On a slow machine, it can give up before the test ends.
        with suppress(NotResolved):
            resolver.addresses(tenant, "silent", 443)

    for tenant in tenants:
        threading.Thread(target=ask, args=(tenant,), daemon=True).start()
    wait_for(lambda: len(servers.asked) == before + len(tenants), "all names to be asked for")


def test_a_tenant_whose_name_server_is_silent_holds_only_its_part_of_the_threads(servers):
    resolver = NameResolver(servers.resolve)
    hold(resolver, servers, ["loud"] * AT_ONCE_OF_TENANT)
    with pytest.raises(NoThreadFree):
        resolver.addresses("loud", "fast", 443)
    assert resolver.addresses("quiet", "fast", 443) == [ADDRESS]
    assert servers.asked.count("fast") == 1


def test_a_thread_is_held_until_the_lookup_ends_and_not_only_until_the_try_gives_up(servers, impatient):
    resolver = NameResolver(servers.resolve)
    for _ in range(AT_ONCE_OF_TENANT):
        with pytest.raises(NotResolved):
            resolver.addresses("loud", "silent", 443)
    with pytest.raises(NoThreadFree):
        resolver.addresses("loud", "silent", 443)
    servers.may_answer.set()

    def is_free() -> bool:
        try:
            resolver.addresses("loud", "silent", 443)
        except NoThreadFree:
            return False
        except NotResolved:
            return True
        return True

    wait_for(is_free, "the threads to be free")


def test_more_silent_names_than_threads_are_not_taken_for_names_without_an_address(servers):
    resolver = NameResolver(servers.resolve)
    hold(resolver, servers, [f"t{number}" for number in range(MAX_THREADS)])
    with pytest.raises(NoThreadFree):
        resolver.addresses("quiet", "fast", 443)


@pytest.mark.parametrize("host", ["192.0.2.7", "2001:db8::7"])
def test_an_address_needs_no_thread(servers, host):
    resolver = NameResolver(servers.resolve)
    hold(resolver, servers, ["loud"] * AT_ONCE_OF_TENANT)
    assert resolver.addresses("loud", host, 443) == [host]
    assert host not in servers.asked


def test_a_name_without_an_address_is_not_resolved(servers):
    with pytest.raises(NotResolved):
        NameResolver(servers.resolve).addresses("blue", "nowhere", 443)


def test_an_address_is_named_once_however_often_the_system_lists_it():
    found = look_up("localhost", 443)
    assert "127.0.0.1" in found
    assert len(set(found)) == len(found)


#: More lookups than gevent's hub has threads are stuck; then the name of the store is resolved as redis-py does it.
STUCK = """
from web.server import gevent_patches
gevent_patches.apply()
import gevent, socket
from gevent import monkey
from web.webhooks import post as names
stuck = monkey.get_original("_thread", "allocate_lock")()
stuck.acquire()
names._look_up_here = lambda host, port: stuck.acquire(timeout=120)
lookups = [gevent.spawn(names.look_up, "silent.example", 443) for _ in range(names.MAX_THREADS)]
gevent.sleep(0)
with gevent.Timeout(60):
    assert socket.getaddrinfo("localhost", 6379)
assert not any(lookup.ready() for lookup in lookups)
print("resolved", flush=True)
stuck.release()
"""


#: No name server is asked for "a..b", because it is not a name.
NOWHERE = """
from web.server import gevent_patches
gevent_patches.apply()
from web.webhooks.post import look_up
assert look_up("a..b", 443) == []
assert "127.0.0.1" in look_up("localhost", 443)
print("resolved", flush=True)
"""


def run(script: str) -> tuple[str, str, int]:
    """Return the output, the errors and the exit status of a process."""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    return done.stdout, done.stderr, done.returncode


def test_lookups_that_are_stuck_leave_the_names_of_other_connections_alone():
    assert run(STUCK) == ("resolved\n", "", 0)


def test_a_name_without_an_address_is_no_fault_that_is_printed():
    assert run(NOWHERE) == ("resolved\n", "", 0)
