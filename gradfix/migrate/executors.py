"""Where the work runs: anything with the interface of `concurrent.futures.Executor`.

An executor is given `worker.run` and a job as text, and gives back a record as text.  Another engine is one more
function here.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Iterator

from gradfix.config import ConfigError

CONNECT_SECONDS = 20


@contextlib.contextmanager
def executor(cluster: str | None, jobs: int) -> Iterator[concurrent.futures.Executor]:
    with local(jobs) if cluster is None else dask(cluster, jobs) as pool:
        yield pool


@contextlib.contextmanager
def local(jobs: int) -> Iterator[concurrent.futures.Executor]:
    """A thread for each worker process: it only waits."""
    from gradfix.migrate import worker

    worker.reopen()
    pool = concurrent.futures.ThreadPoolExecutor(jobs)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        worker.close()
        pool.shutdown()


@contextlib.contextmanager
def dask(address: str, jobs: int) -> Iterator[concurrent.futures.Executor]:
    """`local` starts a cluster here; else the address of a scheduler.  Work of a worker that dies goes to another one."""
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise ConfigError("--cluster needs Dask: pip install 'gradfix[cluster]'") from None
    with contextlib.ExitStack() as stack:
        if address == "local":
            cluster = stack.enter_context(
                LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address=None, silence_logs="ERROR")
            )
        else:
            cluster = address
        try:
            client = stack.enter_context(Client(cluster, timeout=CONNECT_SECONDS))
        except (OSError, ValueError) as error:
            raise ConfigError(f"--cluster {address}: {error or 'no answer'}") from None
        pool = client.get_executor(pure=False)
        try:
            yield pool
        finally:
            pool.shutdown(wait=False)
