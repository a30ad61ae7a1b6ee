import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clockwright.data.errors import FormatError
from clockwright.tracer.importers.event_stream import EventStream
from clockwright.tracer.importers.source import open_source
from tests.tracer.importers.kineto_files import document, kernel

CHUNKS = [64, 100, 257, 1 << 20]


def read(path, chunk=1 << 20):
    with open_source(path) as source:
        stream = EventStream(source, chunk)
        events = [event for batch in stream for event in batch]
    return events, stream


def seen(events):
    return [(event.name, bytes(event.ts), bytes(event.dur)) for event in events]


nested = st.recursive(
    st.none() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["ph", "name", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
events = st.lists(
    st.fixed_dictionaries(
        {"ph": st.just("X"), "name": st.text(max_size=12), "ts": st.integers(0, 10**12)},
        optional={"args": st.dictionaries(st.text(max_size=4), nested, max_size=3)},
    ),
    max_size=12,
)


@settings(max_examples=100, deadline=None)
@given(
    events,
    st.sampled_from(CHUNKS),
    st.sampled_from([None, 1, 2]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_events_are_the_same_in_any_layout(
    tmp_path_factory, rows, chunk, indent, array, zipped, raw
):
    path = tmp_path_factory.getbasetemp() / "layout.json"
    content = (
        rows if array else {"a": [{"ph": 1}], "traceEvents": rows, "z": [{"ph": 2}, {"ph": 3}]}
    )
    text = json.dumps(content, indent=indent, ensure_ascii=raw).encode("utf-8", "surrogatepass")
    path.write_bytes(gzip.compress(text) if zipped else text)
    found, stream = read(path, chunk)
    assert [(event.name, int(bytes(event.ts))) for event in found] == [
        (row["name"], row["ts"]) for row in rows
    ]
    assert stream.repaired == {}
    if not array:
        assert stream.metadata == {"a": [{"ph": 1}], "z": [{"ph": 2}, {"ph": 3}]}


@pytest.mark.parametrize("chunk", CHUNKS)
def test_numbers_stay_text(tmp_path, chunk):
    path = tmp_path / "t.json"
    path.write_text(document(*[kernel(ts="1712195495740538.801", dur="0.640")] * 5))
    found, _ = read(path, chunk)
    assert seen(found) == [("k", b"1712195495740538.801", b"0.640")] * 5


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_damaged_event_in_the_middle_is_mended_and_counted(tmp_path, chunk):
    good, bad = kernel("good"), kernel("PLACE").replace("PLACE", "C:\\dir\\k")
    path = tmp_path / "t.json"
    path.write_text(document(*[good] * 20, bad, *[good] * 20, tail=', "traceName": "t"'))
    found, stream = read(path, chunk)
    assert [event.name for event in found] == ["good"] * 20 + ["C:\\dir\\k"] + ["good"] * 20
    assert stream.repaired == {"single backslash escaped": 1}
    assert stream.metadata["traceName"] == "t"


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("place", ["first", "last", "only"])
def test_a_damaged_event_at_an_end_is_mended(tmp_path, chunk, place):
    good, bad = [kernel("good")] * (0 if place == "only" else 3), kernel("PLACE")
    rows = [bad, *good] if place == "first" else [*good, bad]
    path = tmp_path / "t.json"
    path.write_bytes(document(*rows).encode().replace(b"PLACE", b"a\x01b\xff"))
    found, stream = read(path, chunk)
    assert len(found) == len(rows)
    assert {"a\x01b�"} <= {event.name for event in found}
    assert sum(stream.repaired.values()) == 2


@pytest.mark.parametrize("chunk", CHUNKS)
def test_an_event_beyond_mending_is_refused_with_its_byte(tmp_path, chunk):
    text = document(kernel("a"), '{"ph": "X", "name": "b" "ts": 1}', kernel("c"))
    path = tmp_path / "t.json"
    path.write_text(text)
    place = text.index('{"ph": "X", "name": "b"')
    with pytest.raises(FormatError, match=rf"byte {place}:"):
        read(path, chunk)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("zipped", [False, True])
def test_a_file_cut_anywhere_is_refused_with_its_byte(tmp_path, chunk, zipped):
    text = document(*[kernel(f"k{n}", "10.000", "1.000") for n in range(4)]).encode()
    path = tmp_path / "t.json"
    for end in range(len(text) - 2, 1, -37):
        path.write_bytes(gzip.compress(text[:end]) if zipped else text[:end])
        with pytest.raises(FormatError, match=r"byte \d+|no traceEvents"):
            read(path, chunk)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_file_cut_after_a_comma_names_the_byte(tmp_path, chunk):
    text = document(kernel("a"), kernel("b"))
    cut = text[: text.index(",\n  {") + 1]
    path = tmp_path / "t.json"
    path.write_text(cut)
    with pytest.raises(FormatError, match=rf"byte {len(cut)}: the file is cut off here"):
        read(path, chunk)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("end", ["", ",", ",\n", " \n"])
def test_an_array_may_lack_its_bracket_after_a_whole_event(tmp_path, chunk, end):
    path = tmp_path / "t.json"
    path.write_text("[" + kernel("a") + ",\n" + kernel("b") + end)
    found, stream = read(path, chunk)
    assert [event.name for event in found] == ["a", "b"]
    assert stream.unclosed


def test_an_array_cut_within_an_event_is_refused(tmp_path):
    path = tmp_path / "t.json"
    path.write_text("[" + kernel("a") + ",\n" + kernel("b")[:-20])
    with pytest.raises(FormatError, match="cut off"):
        read(path)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "empty"),
        ("   \n", "empty"),
        ("hello", "expected the JSON"),
        ("{}", "no traceEvents"),
        ('{"traceEvents": {}}', "no traceEvents"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, text, what):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=what):
        read(path)


def test_a_byte_order_mark_is_passed_over(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(b"\xef\xbb\xbf" + document(kernel("a")).encode())
    assert [event.name for event in read(path)[0]] == ["a"]


def test_several_gzip_members_are_one_text(tmp_path):
    text = document(*[kernel(f"k{n}") for n in range(9)]).encode()
    path = tmp_path / "t.json.gz"
    path.write_bytes(
        gzip.compress(text[:500]) + gzip.compress(text[500:900]) + gzip.compress(text[900:])
    )
    assert len(read(path)[0]) == 9


@pytest.mark.parametrize("left", [1, 9, 100])
def test_cut_gzip_names_the_byte_reached(tmp_path, left):
    text = document(*[kernel(f"kernel {n * 7919}", f"{n}.123") for n in range(400)]).encode()
    whole = gzip.compress(text)
    path = tmp_path / "t.json.gz"
    path.write_bytes(whole[:-left])
    with pytest.raises(FormatError, match=r"gzip data is cut off after byte \d+ of its text"):
        read(path)


def test_damaged_gzip_is_refused(tmp_path):
    whole = bytearray(gzip.compress(document(*[kernel(f"k{n}") for n in range(99)]).encode()))
    whole[len(whole) // 2] ^= 0xFF
    path = tmp_path / "t.json.gz"
    path.write_bytes(bytes(whole))
    with pytest.raises(FormatError, match=r"damaged|byte"):
        read(path)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 10**4), st.binary(max_size=3)), min_size=1, max_size=4),
    st.sampled_from(CHUNKS),
)
def test_any_damage_is_read_or_refused_in_one_line(tmp_path_factory, damage, chunk):
    text = bytearray(document(*[kernel(f"k{n}", f"{n}.250") for n in range(1, 6)]).encode())
    for place, replacement in damage:
        at = place % len(text)
        text[at : at + 1] = replacement
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_bytes(bytes(text))
    try:
        read(path, chunk)
    except FormatError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)
