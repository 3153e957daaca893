"""Threads for handlers: as many as asked for, and a stuck one is replaced."""

from __future__ import annotations

import threading

from millstream.worker.runtime.pool import ThreadPool


def test_jobs_run_at_most_size_at_a_time() -> None:
    pool = ThreadPool(2, "test")
    gate, running, peak, done = threading.Event(), [0], [0], threading.Semaphore(0)
    lock = threading.Lock()

    def job() -> None:
        with lock:
            running[0] += 1
            peak[0] = max(peak[0], running[0])
        gate.wait(5)
        with lock:
            running[0] -= 1
        done.release()

    for _ in range(6):
        pool.submit(job)
    gate.set()
    assert all(done.acquire(timeout=60) for _ in range(6))
    assert peak[0] <= 2
    pool.close()


def test_a_written_off_thread_is_replaced_at_once_and_ends_after_its_job() -> None:
    pool = ThreadPool(1, "test")
    stuck, started, other = threading.Event(), threading.Event(), threading.Event()
    idents: list[int] = []

    def hang() -> None:
        idents.append(threading.get_ident())
        started.set()
        stuck.wait(10)

    pool.submit(hang)
    assert started.wait(60)
    pool.submit(other.set)
    assert not other.wait(0.05), "its only thread is stuck"
    pool.replace(idents[0])
    pool.replace(idents[0])  # a second time changes nothing
    assert other.wait(60)
    stuck.set()
    for _ in range(100):
        if idents[0] not in {thread.ident for thread in threading.enumerate()}:
            break
        threading.Event().wait(0.02)
    assert idents[0] not in {thread.ident for thread in threading.enumerate()}
    pool.close()
