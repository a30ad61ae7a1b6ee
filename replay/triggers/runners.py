"""Launches one step under an arm: eagerly with hooks at its anchors, or as a captured CUDA graph.

Several arms share one keeper's table, so each arm's numbers are shifted to a range of their own.

Left out: steps that allocate or synchronize in ways a capture forbids; PyTorch's message says how.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...data.errors import InputError, WorkloadError
from ...data.units import ClockPair
from ..plan import Plan
from .cuda_driver import CudaDriver
from .eager import AnchoredTriggers
from .writers import StreamWriter, Writer

if TYPE_CHECKING:
    from ...tracer.workloads import Step
    from ..verify import Arm
    from .graph import Placing

__all__ = ["EagerRunner", "GraphRunner", "NumberedArm", "Runner", "number_arms"]

_WARM_STEPS = 3


@dataclass(frozen=True)
class NumberedArm:
    """An arm's place in the keeper's table: its own numbers are shifted by ``shift``."""

    plan: Plan
    shift: int

    @property
    def entry(self) -> int:
        """The number that asks for the pair at the step's start."""
        return Plan.ENTRY_SEQUENCE + self.shift


def number_arms(arms: Sequence[Arm]) -> tuple[dict[str, NumberedArm], dict[int, ClockPair]]:
    """Numbers for all arms in one table: (arm name to place, sequence number to pair)."""
    placed: dict[str, NumberedArm] = {}
    table: dict[int, ClockPair] = {}
    for arm in arms:
        place = NumberedArm(arm.plan, len(table))
        placed[arm.name] = place
        table |= {sequence + place.shift: pair for sequence, pair in arm.plan.table.items()}
    return placed, table


class Runner:
    """Runs one step under an arm; made for each way to put triggers into a step."""

    def enter(self, place: NumberedArm) -> None:
        """Make ready for steps under this arm."""
        raise NotImplementedError

    def run(self) -> None:
        """Launch one step; returns without waiting for it."""
        raise NotImplementedError

    def close(self) -> None:
        """Take back what was put into the model."""


class EagerRunner(Runner):
    """Runs the user's step as it is, with hooks at the arm's anchors."""

    def __init__(self, step: Step, writer: Writer) -> None:
        self._step, self._writer = step, writer
        self._place: NumberedArm | None = None
        self._triggers: AnchoredTriggers | None = None
        self._hooks: Any = None

    def enter(self, place: NumberedArm) -> None:
        """Hook the arm's anchors.

        Raises:
            InputError: a trigger has no anchor, or the step shows no model to hook.
        """
        self.close()
        self._place, self._triggers = place, AnchoredTriggers(place.plan)
        if self._triggers.edges:
            if self._step.model is None:
                raise InputError(
                    "the step shows no model, so no module edge can be found in it: return "
                    "(model, optimizer, run) from the step's function"
                )
            from .edges import EdgeHooks

            self._hooks = EdgeHooks(
                self._step.model, self._step.optimizer, self._triggers.edges, self._edge
            )

    def run(self) -> None:
        """Run the step; triggers are written as its edges are passed."""
        if self._triggers is not None and self._place is not None:
            first = self._triggers.begin()
            if first is not None:
                self._writer.write(first.sequence + self._place.shift)
        self._step.run()

    def close(self) -> None:
        """Take the hooks away."""
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None

    def _edge(self, module: str, edge: str) -> None:
        if self._triggers is None or self._place is None:
            return
        trigger = self._triggers.at(module, edge)
        if trigger is not None:
            self._writer.write(trigger.sequence + self._place.shift)


class GraphRunner(Runner):
    """Replays CUDA graphs of the step: a plain one, and one with the schedule's triggers.

    Attributes:
        placing: where the triggers of graphs captured from now on are put (`graph.Placing`).
    """

    def __init__(
        self,
        step: Step,
        writer: StreamWriter,
        driver: CudaDriver,
        placing: Placing = "branch",
    ) -> None:
        self._step, self._writer, self._driver = step, writer, driver
        self.placing: Placing = placing
        self._graphs: dict[tuple[int, ...], Any] = {}
        self._graph: Any = None

    def enter(self, place: NumberedArm) -> None:
        """Capture the arm's graph, if it was not yet.

        Raises:
            WorkloadError: the step cannot be captured.
            MismatchError: it launches another number of kernels than the schedule has.
        """
        key = tuple(trigger.sequence + place.shift for trigger in place.plan.triggers)
        if key not in self._graphs:
            self._graphs[key] = self._capture(place)
        self._graph = self._graphs[key]

    def run(self) -> None:
        """Launch the graph."""
        self._graph.replay()

    def _make_capturable(self) -> None:
        """Keep step counts on the GPU, as PyTorch's optimizers ask for when captured."""
        import torch

        optimizer = self._step.optimizer
        if optimizer is None:
            return
        for group in optimizer.param_groups:
            if "capturable" in group:
                group["capturable"] = True
        for parameter, state in optimizer.state.items():
            count = state.get("step") if isinstance(state, dict) else None
            if isinstance(count, torch.Tensor):
                state["step"] = count.to(parameter.device)

    def warm(self) -> None:
        """Run a few steps as a capture needs them: on a side stream, with capturable optimizers."""
        import torch

        self._make_capturable()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_STEPS):
                self._step.run()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()

    def raw_graph(self) -> int:
        """The entered arm's ``cudaGraph_t``, for reading its triggers back."""
        return int(self._graph.raw_cuda_graph())

    def _capture(self, place: NumberedArm) -> Any:
        import torch

        self.warm()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        # Graphs of one step never run at once, so they share memory: arms then work at the same
        # addresses, and what differs between them is the triggers.
        pool = next((made.pool() for made in self._graphs.values()), None)
        try:
            with torch.cuda.graph(graph, pool=pool):
                self._step.run()
        except RuntimeError as error:
            line = " ".join(str(error).split())[:200]
            raise WorkloadError(
                f"the step cannot be captured as a CUDA graph ({line}); use --triggers eager"
            ) from error
        if place.plan.triggers:
            self._insert(int(graph.raw_cuda_graph()), place)
        graph.instantiate()
        return graph

    def _insert(self, graph: int, place: NumberedArm) -> None:
        from .graph import insert_triggers

        insert_triggers(
            self._driver,
            graph,
            place.plan,
            self._writer.sequence_pointer,
            first_sequence=place.plan.triggers[0].sequence + place.shift,
            placing=self.placing,
        )
