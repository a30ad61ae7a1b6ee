"""Many traces x budgets x switch models, in parallel, written as they come, resumed after a break.

Every job is one solve of `request.optimize_trace` and ends as one row in one Parquet file of a
folder, written whole and then renamed: a batch that is killed loses only what was running, and the
next run skips every job whose file is there. Jobs go to any `concurrent.futures.Executor`, local
processes by default, or a Dask cluster's; a job lost with its worker is given out again.

A job is named by the trace's content, not its path, and by all that decides the answer; the time
limit is left out, so a row solved under another limit is kept (its gap says how good it is).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..data._files import replace_file
from ..data.errors import ClockwrightError, InfeasibleError, InputError
from .request import Request

__all__ = ["Job", "dask_executor", "local_executor", "make_jobs", "read_results", "run_jobs"]

_ATTEMPTS = 3
_UNDECIDING = ("time_limit_s",)


@dataclass(frozen=True)
class Job:
    """One row of the results: a trace (folder and content) and a request."""

    trace: str
    content: str
    request: Request

    @property
    def key(self) -> str:
        """Names the job by everything that decides its answer."""
        asked = {k: v for k, v in asdict(self.request).items() if k not in _UNDECIDING}
        text = json.dumps([self.content, asked], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def make_jobs(
    traces: Sequence[Path], budgets: Sequence[float], switches: Sequence[str], request: Request
) -> list[Job]:
    """The product of traces, budgets and switch models, in that order.

    Raises:
        InputError: a folder is not a trace, or a list is empty.
    """
    if not (traces and budgets and switches):
        raise InputError("a batch needs at least one trace, one budget and one switch model")
    jobs = [
        Job(str(trace), content, replace(request, budget=budget, switches=switch))
        for trace in traces
        for folder in [_content(trace)]
        for budget in budgets
        for switch in switches
        for content in [folder + _table_content(switch)]
    ]
    return list({job.key: job for job in jobs}.values())


def _content(trace: Path) -> str:
    """Digest of a trace folder's files."""
    if not (trace / "trace.json").is_file():
        raise InputError(f"{trace}: not a trace folder (no trace.json in it)")
    digest = hashlib.sha256()
    for path in sorted(trace.iterdir()):
        digest.update(path.name.encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _table_content(switches: str) -> str:
    """Digest of a switch table's file, '' where the words name no file."""
    path = Path(switches)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def solve_job(job: Job) -> dict[str, Any]:
    """One row: what was asked, the answer and its proof, or why there is none."""
    from ..data.trace import read
    from .request import optimize_trace

    row: dict[str, Any] = {
        "key": job.key,
        "trace": job.trace,
        "budget": job.request.budget,
        "switches": job.request.switches,
        "status": "",
        "error": None,
    }
    try:
        schedule = optimize_trace(read(Path(job.trace)), job.request)
    except ClockwrightError as error:
        least = error.least_slowdown if isinstance(error, InfeasibleError) else None
        infeasible = isinstance(error, InfeasibleError)
        return {
            **row,
            "status": "infeasible" if infeasible else "error",
            "error": str(error),
            "least_slowdown": least,
        }
    noise = schedule.extra.get("noise") or {}
    row.update(
        workload=str(schedule.workload["name"]),
        gpu=str(schedule.gpu["name"]),
        simulated=schedule.simulated,
        semantic=str(schedule.switch_model["semantic"]),
        kernels=int(schedule.trace["kernels"]),
        segments=len(schedule.segments),
        time_ns=schedule.predicted.time_ns,
        energy_mj=schedule.predicted.energy_mj,
        slowdown=schedule.predicted.slowdown,
        saving=schedule.predicted.saving,
        saving_held_out=noise.get("saving"),
        baseline_time_ns=schedule.baseline.time_ns,
        baseline_energy_mj=schedule.baseline.energy_mj,
        lower_bound_mj=schedule.proof.lower_bound_mj,
        gap=schedule.proof.gap,
        status=schedule.proof.status,
        method=schedule.proof.method,
        seconds=schedule.proof.seconds,
        recommendation=schedule.recommendation,
        baselines=json.dumps([asdict(entry) for entry in schedule.baselines]),
    )
    return row


_work = solve_job  # what a worker runs


_COLUMNS: dict[str, str] = {
    "key": "string",
    "trace": "string",
    "workload": "string",
    "gpu": "string",
    "simulated": "bool",
    "budget": "double",
    "switches": "string",
    "semantic": "string",
    "kernels": "int64",
    "segments": "int64",
    "time_ns": "double",
    "energy_mj": "double",
    "slowdown": "double",
    "saving": "double",
    "saving_held_out": "double",
    "baseline_time_ns": "double",
    "baseline_energy_mj": "double",
    "lower_bound_mj": "double",
    "gap": "double",
    "status": "string",
    "method": "string",
    "seconds": "double",
    "recommendation": "string",
    "baselines": "string",
    "least_slowdown": "double",
    "error": "string",
}


def _write_row(row: dict[str, Any], folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in _COLUMNS.items()])
    table = pa.Table.from_pylist([{name: row.get(name) for name in _COLUMNS}], schema=schema)
    with replace_file(_part(folder, row["key"])) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def _part(folder: Path, key: str) -> Path:
    return folder / f"part-{key}.parquet"


def read_results(folder: Path) -> Any:
    """All rows of a results folder, as a pandas frame.

    Raises:
        InputError: there is no result in it.
    """
    import pandas as pd

    parts = sorted(Path(folder).glob("part-*.parquet"))
    if not parts:
        raise InputError(f"{folder}: no results in it")
    return pd.concat([pd.read_parquet(part) for part in parts], ignore_index=True)


def _prepare(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} exists and is not a folder; a batch writes a folder of results")
    if folder.is_dir():
        strange = [
            path for path in folder.iterdir() if not path.name.startswith(("part-", ".part-"))
        ]
        if strange:
            raise InputError(f"{folder} holds other files ({strange[0].name}); name a new folder")
        for half in folder.glob(".part-*"):
            half.unlink(missing_ok=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}") from error


def run_jobs(
    jobs: Iterable[Job],
    folder: Path,
    make_executor: Callable[[], Any],
    *,
    on_start: Callable[[int, int], None] = lambda done, total: None,
    on_row: Callable[[dict[str, Any]], None] = lambda row: None,
) -> int:
    """Solve the jobs that have no result yet; each row is on disk before ``on_row`` hears of it.

    Args:
        jobs: from `make_jobs`.
        folder: of results, made if absent, resumed if there.
        make_executor: a context manager giving an executor; called again if its workers die.
        on_start: told how many jobs were done before, and how many there are.
        on_row: told of every new row.

    Returns:
        How many jobs were solved now.

    Raises:
        InputError: the folder holds something else.
        ClockwrightError: a job's worker died each time it was tried.
    """
    _prepare(folder)
    todo = list(jobs)
    left = {job.key: job for job in todo if not _part(folder, job.key).exists()}
    on_start(len(todo) - len(left), len(todo))
    solved = 0
    attempts = dict.fromkeys(left, 0)
    while left:
        try:
            with make_executor() as executor:
                for row in _stream(executor, left, attempts):
                    _write_row(row, folder)
                    del left[row["key"]]
                    solved += 1
                    on_row(row)
        except BrokenExecutor as error:
            # A process pool is lost as a whole with one worker: what was not done is given out
            # again, to a new pool, but not for ever.
            if any(attempts[key] >= _ATTEMPTS for key in left):
                raise ClockwrightError(
                    f"workers died {_ATTEMPTS} times over {len(left)} unsolved jobs (out of "
                    "memory?); what is done is kept, run again with fewer --workers"
                ) from error
    return solved


def _stream(
    executor: Executor, left: dict[str, Job], attempts: dict[str, int]
) -> Iterator[dict[str, Any]]:
    """Rows as they are done; at most twice as many jobs are out as would keep workers busy."""
    waiting = list(left.values())
    running: dict[Future[dict[str, Any]], Job] = {}
    most = 2 * max(1, getattr(executor, "_max_workers", None) or 16)
    try:
        while waiting or running:
            while waiting and len(running) < most:
                job = waiting.pop(0)
                attempts[job.key] += 1
                running[executor.submit(_work, job)] = job
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                del running[future]
                yield future.result()
    finally:
        for future in running:
            future.cancel()


@contextmanager
def local_executor(workers: int | None = None) -> Iterator[Executor]:
    """Processes of this machine, started afresh (no fork, so that no lock is inherited)."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """A Dask cluster's executor; Dask itself gives a dead worker's jobs to another.

    Traces must be readable at the same paths on the workers.

    Raises:
        InputError: Dask is not installed, or no scheduler answers.
    """
    try:
        import distributed
    except ModuleNotFoundError as error:
        raise InputError(
            "--dask needs the optional package: pip install 'clockwright[dask]'"
        ) from error
    try:
        connect: Any = distributed.Client
        client = connect(address, timeout="10s")
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {address}: {error}") from error
    try:
        yield client.get_executor(pure=False, retries=_ATTEMPTS)
    except distributed.scheduler.KilledWorker as error:
        raise BrokenExecutor(str(error)) from error
    finally:
        client.close()
