"""Small Kineto files for the importer tests, written as torch.profiler writes them."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DATASETS = ROOT.parent / "shared" / "datasets"


def kernel(name="k", ts="10.000", dur="5.000", *, cat="kernel", tid=7, pid=0, **args):
    """One kernel event as text; ``ts`` and ``dur`` stand as given; an arg of None is left out."""
    fields = {"device": 0, "stream": 7, "correlation": None, "grid": [1, 1, 1], "block": [32, 1, 1]}
    fields |= {"registers per thread": 16, "shared memory": 0}
    fields |= {key.replace("_", " "): value for key, value in args.items()}
    fields = {key: value for key, value in fields.items() if value is not None}
    return (
        f'{{"ph": "X", "cat": "{cat}", "name": {json.dumps(name)}, "pid": {json.dumps(pid)}, '
        f'"tid": {json.dumps(tid)}, "ts": {ts}, "dur": {dur}, "args": {json.dumps(fields)}}}'
    )


def event(cat, name, ts, dur, *, tid=100, pid=100, **args):
    """Any other complete event as text."""
    fields = {key.replace("_", " "): value for key, value in args.items()}
    return (
        f'{{"ph": "X", "cat": "{cat}", "name": {json.dumps(name)}, "pid": {pid}, "tid": {tid}, '
        f'"ts": {ts}, "dur": {dur}, "args": {json.dumps(fields)}}}'
    )


def launch(correlation, ts, *, name="cudaLaunchKernel", external=None, tid=100):
    """The runtime call that launched a kernel."""
    args = {"correlation": correlation}
    if external is not None:
        args["External id"] = external
    return event("cuda_runtime", name, ts, "2.000", tid=tid, **args)


def step(number, ts, dur):
    """A step annotation on the host."""
    return event("user_annotation", f"ProfilerStep#{number}", ts, dur)


def document(*events, head="", tail=""):
    """The object form: header fields, events, trailer fields."""
    body = ",\n  ".join(events)
    return f'{{\n "schemaVersion": 1,{head}\n "traceEvents": [\n  {body}\n ]{tail}\n}}\n'


def write(path, *events, **options):
    """Write the object form and return the path."""
    path.write_text(document(*events, **options), encoding="utf-8")
    return path


def only(result):
    """The one trace of a result."""
    (trace,) = result.traces.values()
    return trace
