"""A batch runs in parallel, keeps what is done, and survives its workers and itself."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from clockwright.data import trace as traces
from clockwright.data.errors import ClockwrightError, InputError
from clockwright.optimizer import batch
from clockwright.optimizer.batch import local_executor, make_jobs, read_results, run_jobs
from clockwright.optimizer.request import Request, optimize_trace
from tests.optimizer.steps import random_trace

REQUEST = Request(0.0, time_limit_s=5, tolerance=1e-4)


@pytest.fixture
def folders(tmp_path):
    paths = [tmp_path / "one", tmp_path / "two"]
    for seed, path in enumerate(paths):
        traces.write(random_trace(seed + 1), path)
    return paths


@contextmanager
def threads():
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_the_product_is_solved_and_rows_say_what_single_runs_say(folders, tmp_path):
    jobs = make_jobs(folders, [0.0, 0.05], ["free", "1us,5us"], REQUEST)
    assert run_jobs(jobs, tmp_path / "out", threads) == 8
    frame = read_results(tmp_path / "out").set_index("key")
    assert set(frame.index) == {job.key for job in jobs}
    for job in jobs:
        alone = optimize_trace(traces.read(Path(job.trace)), job.request)
        assert frame.loc[job.key, "energy_mj"] == pytest.approx(alone.predicted.energy_mj, rel=2e-4)
        assert frame.loc[job.key, "slowdown"] <= job.request.budget + 1e-12


def test_a_batch_is_resumed_where_it_stopped(folders, tmp_path):
    jobs = make_jobs(folders, [0.0, 0.05], ["free"], REQUEST)

    def stop(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, tmp_path / "out", threads, on_row=stop)
    done = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    assert len(done) == 1
    seen = []
    assert run_jobs(jobs, tmp_path / "out", threads, on_start=lambda *n: seen.append(n)) == 3
    assert seen == [(1, 4)]
    name, when = done.popitem()
    assert (tmp_path / "out" / name).stat().st_mtime_ns == when
    assert run_jobs(jobs, tmp_path / "out", threads) == 0


def test_jobs_are_named_by_content_not_by_path_or_patience(folders, tmp_path):
    traces.write(random_trace(1), tmp_path / "same")
    one, two = make_jobs(folders, [0.0], ["free"], REQUEST)
    assert make_jobs([tmp_path / "same"], [0.0], ["free"], REQUEST)[0].key == one.key
    assert one.key != two.key
    patient = Request(0.0, time_limit_s=500, tolerance=1e-4)
    assert make_jobs(folders, [0.0], ["free"], patient)[0].key == one.key
    table = tmp_path / "switches.csv"
    table.write_text("from_core_mhz,to_core_mhz,latency_ns_p50\n1800,1200,5\n")
    before = make_jobs(folders, [0.0], [str(table)], REQUEST)[0].key
    table.write_text("from_core_mhz,to_core_mhz,latency_ns_p50\n1800,1200,6\n")
    assert make_jobs(folders, [0.0], [str(table)], REQUEST)[0].key != before


def test_a_job_that_cannot_be_solved_is_a_row_like_any_other(folders, tmp_path):
    trace = random_trace(1)
    slow = trace.profile["pair"] != 0
    trace.profile.loc[slow, "duration_ns"] = trace.profile.loc[slow, "duration_ns"] * 1.05
    traces.write(trace, tmp_path / "slow")
    jobs = make_jobs([tmp_path / "slow", folders[0]], [0.0], ["free", "measured"], REQUEST)
    run_jobs(jobs, tmp_path / "out", threads)
    rows = read_results(tmp_path / "out").set_index("key")
    assert rows.loc[jobs[0].key, "status"] == "infeasible"
    assert rows.loc[jobs[0].key, "least_slowdown"] == pytest.approx(0.05)
    assert "no switch table" in rows.loc[jobs[1].key, "error"]
    assert rows.loc[jobs[2].key, "status"] in {"optimal", "limit"}


def test_a_folder_of_something_else_is_left_alone(folders, tmp_path):
    jobs = make_jobs(folders, [0.0], ["free"], REQUEST)
    with pytest.raises(InputError, match="holds other files"):
        run_jobs(jobs, folders[0], threads)
    with pytest.raises(InputError, match="not a trace folder"):
        make_jobs([tmp_path / "nothing"], [0.0], ["free"], REQUEST)
    with pytest.raises(InputError, match="no results"):
        read_results(tmp_path)


def _die_once(marker, job):
    """A worker that is killed (as by the kernel, out of memory) on the first job it gets."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return batch.solve_job(job)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def _die_always(job):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_loses_nothing(folders, tmp_path, monkeypatch):
    jobs = make_jobs(folders, [0.0, 0.05], ["free"], REQUEST)
    monkeypatch.setattr(batch, "_work", partial(_die_once, str(tmp_path / "died")))
    solved = run_jobs(jobs, tmp_path / "out", partial(local_executor, 2))
    assert (tmp_path / "died").exists()
    assert solved == 4
    assert set(read_results(tmp_path / "out")["key"]) == {job.key for job in jobs}


def test_workers_that_always_die_end_the_batch_with_clear_words(folders, tmp_path, monkeypatch):
    jobs = make_jobs(folders, [0.0], ["free"], REQUEST)
    monkeypatch.setattr(batch, "_work", _die_always)
    with pytest.raises(ClockwrightError, match="workers died 3 times"):
        run_jobs(jobs, tmp_path / "out", partial(local_executor, 1))


def _slow_job(job):
    time.sleep(1.0)
    return batch.solve_job(job)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Dask's own, on the loss of a worker
def test_a_dask_cluster_finishes_although_a_worker_is_killed(folders, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="the dask extra is not installed")
    jobs = make_jobs(folders, [0.0, 0.02, 0.05, 0.1], ["free"], REQUEST)
    monkeypatch.setattr(batch, "_work", _slow_job)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        killed = []

        def kill_one(row):
            if not killed:
                worker = next(iter(cluster.workers.values()))
                killed.append(worker.process.process.pid)
                os.kill(killed[0], signal.SIGKILL)

        make = partial(batch.dask_executor, cluster.scheduler_address)
        assert run_jobs(jobs, tmp_path / "out", make, on_row=kill_one) == 8
    assert killed
    rows = read_results(tmp_path / "out")
    assert set(rows["key"]) == {job.key for job in jobs}
    assert rows["error"].isna().all()


@pytest.mark.slow
def test_no_dask_scheduler_is_told():
    pytest.importorskip("distributed", reason="the dask extra is not installed")
    with (
        pytest.raises(InputError, match="no Dask scheduler answers"),
        batch.dask_executor("tcp://127.0.0.1:9"),
    ):
        raise AssertionError
