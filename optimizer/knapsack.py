"""Free switches: a multiple-choice knapsack, closed by a search from big blocks to small ones.

Where switches cost nothing a block's choice touches no other's, and their order is ours. At the
dual's multiplier m every block has a base state; any other has a penalty p >= 0 (energy + m * time)
and moves the step's time by d. A schedule takes the Lagrangian bound + sum of p + m * (time left
unused). Blocks are taken by falling |d| of their least penalty: few combinations of big ones are
cheap, and small ones fill what is left like sand. A label is what the blocks taken so far chose.
It is dropped if another is no slower and not dearer by more than a hair, or if a bound on its
completion, at any of many multipliers near m, reaches the schedule in hand; a cap on their number
lowers the bound by what it drops. Hairs add up over the blocks and lower the bound as well: passes
go from thick to thin, the first for good schedules, the last for the proof. Without any, rounding
would keep the labels of blocks that are alike apart.

After Pisinger, European Journal of Operational Research 83(2), 1995, whose core is taken by rising
penalty instead; here, where blocks differ in size a thousandfold, sizes decide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .compiled import compiled, inner
from .deadline import Deadline
from .incumbent import Incumbent
from .instance import Instance

__all__ = ["close_free"]

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST_CELLS = 40_000_000
_MOST_LABELS = 20_000_000  # 8 bytes each, for the way back
_STEPS = (0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
_OFF = (0.0, *_STEPS, 1.0, *(-step for step in _STEPS))  # multipliers off the dual's, relative
_PASSES = ((1e2, 500), (1e3, 5_000), (1e5, 5_000), (1e7, 20_000), (np.inf, 100_000))
"""Hairs to a gap, and labels kept after a block."""
_PROOF_HAIR = 0.05  # of the tolerance, over all blocks: what the last pass may lose
_LEAST_HAIR = 1e-15  # of the energy, over all blocks
_LOOSE = 2.0**-50  # a sum's rounding, a block
_WORK = 5_000_000  # labels made between looks at the clock


@dataclass(frozen=True, eq=False)
class _Knapsack:
    """M blocks with a choice left, in the order in which they are taken; A states in all.

    Attributes:
        base: (N,) int32, the state of every block at the multiplier.
        block: (M,) int64, the block of each stage.
        ptr: (M + 1,) int64, the states of stage i are ptr[i] .. ptr[i + 1] - 1.
        state: (A,) int32.
        delta_ns: (A,) time against the base.
        penalty_mj: (A,) energy + multiplier * time against the base.
        room_ns: budget less the time of the bases, of either sign.
        multiplier: mJ a ns.
        bound_mj: the Lagrangian bound, which the penalties come on top of.
    """

    base: NDArray[np.int32]
    block: Ints
    ptr: Ints
    state: NDArray[np.int32]
    delta_ns: Array
    penalty_mj: Array
    room_ns: float
    multiplier: float
    bound_mj: float


def close_free(
    inst: Instance, hold: Incumbent, multiplier: float, budget_ns: float, deadline: Deadline
) -> None:
    """Search under thinner and thinner hairs until the gap is closed; all goes to ``hold``.

    Args:
        inst: an instance whose switches are free.
        hold: the schedule in hand and the bound.
        multiplier: the dual's, mJ a ns, positive.
        budget_ns: time budget less the gaps.
        deadline: when to stop.
    """
    for hairs, cap in _PASSES:
        if hold.closed or deadline.passed:
            return
        for room_ns in (budget_ns, budget_ns * (1 - 4 * inst.n_blocks * _LOOSE)):
            gain = 0.9 * hold.tolerance * hold.energy_mj
            sack = _build(inst, multiplier, room_ns, hold.energy_mj - gain)
            if sack is None:
                return
            over = hold.energy_mj - sack.bound_mj
            stages = max(len(sack.block), 1)
            proof = max(_PROOF_HAIR * gain, _LEAST_HAIR * hold.energy_mj) / stages
            bound_mj, path = _search(sack, over, gain, max(over / hairs, proof), cap, deadline)
            if room_ns == budget_ns:
                hold.prove(bound_mj - inst.n_blocks * _LOOSE * abs(bound_mj), "knapsack")
            # A schedule within the loosened budget only is asked for again under a tighter one.
            if path is None or hold.offer(inst.choice(path), "knapsack"):
                break


def _build(
    inst: Instance, multiplier: float, budget_ns: float, limit_mj: float
) -> _Knapsack | None:
    """Keep the states through which a schedule may take less than ``limit_mj``.

    Returns:
        None if the instance is too large to lay out.
    """
    kind, group = _kinds(inst)
    if len(kind) * inst.n_states > _MOST_CELLS:
        return None
    time, energy = inst.time[inst.row[kind]], inst.energy[inst.row[kind]]
    if not inst.plain:
        time = inst.tscale[kind, None] * time
        energy = inst.escale[kind, None] * energy + inst.hold[kind, None] * inst.idle
    cost = energy + multiplier * time
    lines = np.arange(len(kind))
    base = cost.argmin(axis=1)
    base_ns, least = time[lines, base], cost[lines, base]
    bound_mj = float(least[group].sum()) - multiplier * budget_ns
    penalty = cost - least[:, None]
    alive = penalty < limit_mj - bound_mj
    alive[lines, base] = True
    penalty[lines, base] = np.inf
    second = penalty.argmin(axis=1)
    penalty[lines, base] = 0.0
    step_ns = np.abs(time[lines, second] - base_ns)
    # Blocks alike follow one another, so that their labels merge at once.
    rank = np.empty(len(kind), dtype=np.int64)
    rank[np.argsort(-step_ns, kind="stable")] = lines
    counts = alive.sum(axis=1)
    block = np.flatnonzero(counts[group] > 1)
    block = block[np.argsort(rank[group[block]], kind="stable")]
    of = group[block]
    first = np.cumsum(counts) - counts
    ptr = np.concatenate([[0], np.cumsum(counts[of])])
    line = np.repeat(of, counts[of])
    state = np.nonzero(alive)[1][np.arange(ptr[-1]) + np.repeat(first[of] - ptr[:-1], counts[of])]
    return _Knapsack(
        base[group].astype(np.int32),
        block,
        ptr,
        state.astype(np.int32),
        time[line, state] - base_ns[line],
        penalty[line, state],
        budget_ns - float(base_ns[group].sum()),
        multiplier,
        bound_mj,
    )


def _kinds(inst: Instance) -> tuple[Ints, Ints]:
    """A block of every kind, and the kind of every block: blocks alike have equal cells."""
    if inst.plain:
        _, kind, group = np.unique(inst.row, return_index=True, return_inverse=True)
    else:
        keys = np.column_stack([inst.row, inst.tscale, inst.escale, inst.hold])
        _, kind, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    return kind, group.reshape(-1)


def _search(
    sack: _Knapsack, over_mj: float, gain_mj: float, hair: float, cap: int, deadline: Deadline
) -> tuple[float, NDArray[np.int32] | None]:
    """A bound on every schedule (mJ), and the best path found that takes less than the one in hand.

    Args:
        sack: from `_build`.
        over_mj: energy of the schedule in hand, over the Lagrangian bound.
        gain_mj: schedules that would gain less are not looked for.
        hair: mJ within which labels count as alike.
        cap: labels kept after each block.
        deadline: when to stop.
    """
    m, stages = sack.multiplier, len(sack.block)
    off = m * np.array(_OFF)
    rest, rest_ns, rest_mj = (np.zeros((len(off), stages + 1)) for _ in range(3))
    pick = np.zeros((len(off), stages), dtype=np.int64)
    _pick_all(sack.ptr, sack.delta_ns, sack.penalty_mj, off, rest, rest_ns, rest_mj, pick)
    fastest = np.zeros(stages + 1)
    if stages:
        least = np.minimum.reduceat(sack.delta_ns, sack.ptr[:-1])
        fastest[:-1] = np.cumsum(least[::-1])[::-1]
    d, p = np.zeros(1), np.zeros(1)
    parents, choices = [np.full(1, -1, dtype=np.int32)], [np.full(1, -1, dtype=np.int32)]
    starts = [0, 1]
    # mJ over the bound, stage, label in it, multiplier; last the least bound of what was dropped.
    best = np.array([over_mj, -1.0, -1.0, -1.0, np.inf])
    _finish(0, d, p, m, sack.room_ns, rest_ns, rest_mj, best)
    i = 0
    while i < stages and len(d):
        if deadline.passed or starts[-1] > _MOST_LABELS:
            best[4] = min(best[4], _bound_all(i, d, p, off, rest, sack.room_ns))
            break
        d, p, parent, choice, sizes = _advance(
            i, sack.ptr, sack.delta_ns, sack.penalty_mj, m, sack.room_ns, off, rest, rest_ns,
            rest_mj, fastest, hair, gain_mj, cap, d, p, best,
        )  # fmt: skip
        parents.append(parent)
        choices.append(choice)
        starts += (starts[-1] + np.cumsum(sizes)).tolist()
        i += len(sizes)
    path = None
    if best[1] >= 0:
        parent, choice = np.concatenate(parents), np.concatenate(choices)
        path = _walk(sack, parent, choice, starts, pick, best)
    bound = min(float(best[4]), float(best[0]) - gain_mj) - stages * hair
    return sack.bound_mj + bound, path


@compiled()
def _pick_all(
    ptr: Ints,
    delta: Array,
    penalty: Array,
    off: Array,
    rest: Array,
    ns: Array,
    mj: Array,
    pick: Ints,
) -> None:
    for j in range(off.size):
        for i in range(ptr.size - 2, -1, -1):
            who, low = ptr[i], penalty[ptr[i]] + off[j] * delta[ptr[i]]
            for x in range(ptr[i] + 1, ptr[i + 1]):
                value = penalty[x] + off[j] * delta[x]
                if value < low:
                    who, low = x, value
            pick[j, i] = who
            rest[j, i] = rest[j, i + 1] + low
            ns[j, i] = ns[j, i + 1] + delta[who]
            mj[j, i] = mj[j, i + 1] + penalty[who]


@inner()
def _least(i: int, d: float, p: float, off: Array, rest: Array, room: float) -> float:
    """A lower bound, over the dual's, on any completion of a label by the stages from i on."""
    low = -np.inf
    for j in range(off.size):
        low = max(low, p - off[j] * (room - d) + rest[j, i])
    return low


@compiled()
def _bound_all(i: int, d: Array, p: Array, off: Array, rest: Array, room: float) -> float:
    low = np.inf
    for n in range(d.size):
        low = min(low, _least(i, d[n], p[n], off, rest, room))
    return low


@compiled()
def _finish(
    i: int, d: Array, p: Array, m: float, room: float, ns: Array, mj: Array, best: Array
) -> None:
    """Complete every label by the picks of the stages from i on; keep the best within the room."""
    for j in range(ns.shape[0]):
        for n in range(d.size):
            left = room - d[n] - ns[j, i]
            value = p[n] + mj[j, i] + m * left
            if left >= 0.0 and value < best[0]:
                best[0], best[1], best[2], best[3] = value, i, n, j


@inner()
def _merge(
    i: int,
    lo: int,
    hi: int,
    delta: Array,
    penalty: Array,
    m: float,
    room: float,
    off: Array,
    rest: Array,
    fastest: float,
    hair: float,
    limit: float,
    d: Array,
    p: Array,
    nd: Array,
    ne: Array,
    parent: NDArray[np.int32],
    choice: NDArray[np.int32],
) -> int:
    """Labels after stage i - 1, whose states are lo .. hi - 1, by rising time; how many."""
    at = np.zeros(hi - lo, dtype=np.int64)
    floor, count = np.inf, 0
    while True:
        who, low = -1, np.inf
        for q in range(at.size):
            if at[q] < d.size and d[at[q]] + delta[lo + q] < low:
                who, low = q, d[at[q]] + delta[lo + q]
        if who < 0 or low + fastest > room:
            return count
        source = at[who]
        at[who] += 1
        mj = p[source] + penalty[lo + who]
        energy = mj - m * low
        if energy < floor - hair and _least(i, low, mj, off, rest, room) < limit:
            floor = energy
            nd[count], ne[count], parent[count], choice[count] = low, mj, source, lo + who
            count += 1


@compiled()
def _advance(
    i: int,
    ptr: Ints,
    delta: Array,
    penalty: Array,
    m: float,
    room: float,
    off: Array,
    rest: Array,
    rest_ns: Array,
    rest_mj: Array,
    fastest: Array,
    hair: float,
    gain: float,
    cap: int,
    d: Array,
    p: Array,
    best: Array,
) -> tuple[Array, Array, NDArray[np.int32], NDArray[np.int32], Ints]:
    """Take stage after stage until enough work is done; the labels, the way back, and sizes."""
    work, taken, made = 0, 0, 0
    sizes = np.empty(ptr.size, dtype=np.int64)
    parents, choices = np.empty(1024, dtype=np.int32), np.empty(1024, dtype=np.int32)
    while i < ptr.size - 1 and work < _WORK and d.size:
        lo, hi = ptr[i], ptr[i + 1]
        most = d.size * (hi - lo)
        work += most
        nd, ne = np.empty(most), np.empty(most)
        parent, choice = np.empty(most, dtype=np.int32), np.empty(most, dtype=np.int32)
        i += 1
        n = _merge(
            i, lo, hi, delta, penalty, m, room, off, rest, fastest[i], hair, best[0] - gain,
            d, p, nd, ne, parent, choice,
        )  # fmt: skip
        if n > cap:
            z = np.empty(n)
            for x in range(n):
                z[x] = _least(i, nd[x], ne[x], off, rest, room)
            cut = np.partition(z, cap)[cap]
            best[4] = min(best[4], cut)
            n = 0
            for x in range(z.size):
                if z[x] < cut:
                    nd[n], ne[n], parent[n], choice[n] = nd[x], ne[x], parent[x], choice[x]
                    n += 1
        d, p = nd[:n].copy(), ne[:n].copy()
        if made + n > parents.size:
            grown = np.empty((2, max(made + n, 2 * parents.size)), dtype=np.int32)
            grown[0, :made], grown[1, :made] = parents[:made], choices[:made]
            parents, choices = grown[0], grown[1]
        parents[made : made + n], choices[made : made + n] = parent[:n], choice[:n]
        made += n
        sizes[taken] = n
        taken += 1
        _finish(i, d, p, m, room, rest_ns, rest_mj, best)
    return d, p, parents[:made], choices[:made], sizes[:taken]


def _walk(
    sack: _Knapsack,
    parent: NDArray[np.int32],
    choice: NDArray[np.int32],
    starts: list[int],
    pick: Ints,
    best: Array,
) -> NDArray[np.int32]:
    """(N,) states of the best schedule found."""
    path = sack.base.copy()
    stage, label, completed = (int(x) for x in best[1:4])
    path[sack.block[stage:]] = sack.state[pick[completed, stage:]]
    for i in range(stage, 0, -1):
        at = starts[i] + label
        path[sack.block[i - 1]] = sack.state[choice[at]]
        label = int(parent[at])
    return path
