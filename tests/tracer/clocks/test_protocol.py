from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clockwright.data import errors
from clockwright.data.errors import FormatError, InputError, KeeperError, LockNotHeldError
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.tracer.clocks import protocol
from clockwright.tracer.clocks.events import ClockEvent, Outcome

clocks = st.none() | st.integers(1, 10_000)
pairs = st.builds(ClockPair, clocks, clocks)
int64 = st.integers(0, 2**63 - 1)
json_objects = st.dictionaries(st.text(), st.integers() | st.text() | st.none(), max_size=4)


@given(st.lists(json_objects, max_size=5), st.data())
def test_messages_survive_any_cutting_of_the_stream(
    messages: list[dict[str, object]], data: st.DataObject
) -> None:
    stream = b"".join(map(protocol.encode, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    reader = protocol.LineReader()
    read = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        read += reader.feed(stream[begin:end])
    assert read == messages


@given(st.dictionaries(st.integers(1, protocol.SEQUENCE_MAX), pairs, max_size=8))
def test_a_table_survives_the_wire(table: dict[int, ClockPair]) -> None:
    wire = json.loads(json.dumps(protocol.table_to_json(table)))
    assert protocol.table_from_json(wire) == table


@given(
    st.builds(
        ClockEvent,
        sequence=st.integers(0, protocol.SEQUENCE_MAX),
        step=st.integers(0, protocol.SEQUENCE_MAX),
        seen_ns=int64,
        call_ns=int64,
        done_ns=int64,
        pair=st.none() | pairs,
        outcome=st.sampled_from(Outcome),
        power_limit_w=st.none() | st.floats(1, 1000),
    )
)
def test_an_event_survives_the_wire(event: ClockEvent) -> None:
    assert ClockEvent.from_json(json.loads(json.dumps(event.to_json()))) == event


@pytest.mark.parametrize("sequence", [0, -1, 2**32])
def test_numbers_a_stream_cannot_write_are_refused(sequence: int) -> None:
    with pytest.raises(InputError, match="sequence numbers must be 1 to"):
        protocol.table_to_json({sequence: GOVERNOR})


@pytest.mark.parametrize(
    "line", [b"[]\n", b"nonsense\n", b'{"a": 1\n', b"\xff\n", b"[" * 99999 + b"\n"]
)
def test_a_line_that_is_no_object_is_refused(line: bytes) -> None:
    with pytest.raises(FormatError, match="clock keeper"):
        protocol.LineReader().feed(line)


def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    reader = protocol.LineReader()
    with pytest.raises(FormatError, match="over"):
        for _ in range(100):
            reader.feed(b"x" * (protocol.MAX_LINE_BYTES // 10))


@pytest.mark.parametrize(
    ("message", "kind"), [({}, int), ({"a": True}, int), ({"a": "1"}, int), ({"a": 1.5}, int)]
)
def test_a_field_of_the_wrong_type_is_refused(message: dict[str, object], kind: type) -> None:
    with pytest.raises(FormatError, match="needs a"):
        protocol.field(message, "a", kind)


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_of_the_tree_arrives_as_itself(name: str) -> None:
    error = getattr(errors, name)("why")
    back = protocol.error_from_json(protocol.error_to_json(error))
    assert (type(back), str(back)) == (type(error), "why")


@pytest.mark.parametrize("kind", ["SystemExit", "__import__", "annotations", "", None])
def test_an_error_of_any_other_name_arrives_as_a_keeper_error(kind: object) -> None:
    back = protocol.error_from_json({"kind": kind, "message": "why"})
    assert type(back) is KeeperError
    assert isinstance(protocol.error_from_json("text"), KeeperError)
    assert protocol.error_to_json(ValueError("odd"))["kind"] == "KeeperError"
    assert protocol.error_to_json(LockNotHeldError("x"))["kind"] == "LockNotHeldError"
