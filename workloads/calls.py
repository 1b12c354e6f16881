"""Python code whose calls are known, for SECONDS: a third of the time each below `recurse`, `by_key` and `worker`.

Prints each branch's share of the CPU time that the program measured itself.
"""

import sys
import threading
import time

DEPTH = 20


def leaf(n):
    total = 0
    for i in range(n):
        total += i * i % 7
    return total


class Handler:
    def handle(self):
        return leaf(4000)


def recurse(depth, handler):
    if depth:
        return recurse(depth - 1, handler)
    return handler.handle()


def by_key(_):
    """Called by C code, which Python calls."""
    return leaf(100)


def through_c():
    return sorted(range(40), key=by_key)


def worker():
    """In a thread of its own."""
    for _ in range(25):
        leaf(4000)


def in_thread():
    thread = threading.Thread(target=worker)
    thread.start()
    thread.join()


def main(seconds):
    handler = Handler()
    branches = {
        "recurse": lambda: [recurse(DEPTH, handler) for _ in range(25)],
        "by_key": lambda: [through_c() for _ in range(25)],
        "worker": in_thread,
    }
    spent = dict.fromkeys(branches, 0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, branch in branches.items():
            before = time.process_time_ns()
            branch()
            spent[name] += time.process_time_ns() - before
    for name, ns in spent.items():
        print(name, f"{100 * ns / sum(spent.values()):.2f}", flush=True)


main(float(sys.argv[1]))
