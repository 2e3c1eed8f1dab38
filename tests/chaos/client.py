"""A client process of a chaos run: several users in threads, which end when the process receives SIGTERM."""

import argparse
import random
import signal
import threading
from pathlib import Path

from tests.chaos.calls import Doors
from tests.chaos.ledger import LedgerFile
from tests.chaos.owners import Owner
from tests.chaos.users import Shared, User

#: How many users of each kind a process has.
USERS, OWNERS = 3, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--doors", type=int, nargs="+", required=True)
    parser.add_argument("--gate", type=int, required=True)
    parser.add_argument("--keys", nargs="+", required=True, help="tenant=key")
    parser.add_argument("--words", type=int, nargs=2, default=(5, 90))
    options = parser.parse_args()
    shared = Shared(LedgerFile(options.ledger), threading.Event())
    signal.signal(signal.SIGTERM, lambda *_: shared.stopped.set())
    keys = [pair.split("=", 1) for pair in options.keys]
    threads = []
    for number in range(USERS + OWNERS):
        tenant, key = keys[number % len(keys)]
        rng = random.Random(f"{options.seed}/{number}")
        doors = Doors(options.doors, key, rng)
        words = (options.words[0], options.words[1])
        user = User(shared, tenant, doors, rng, words)
        if number >= USERS:
            user = Owner(shared, tenant, doors, rng, words, (options.gate, key))
        threads.append(threading.Thread(target=user.run, name=f"user{number}"))
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)  # a join without a limit would delay the handler of SIGTERM


if __name__ == "__main__":
    main()
