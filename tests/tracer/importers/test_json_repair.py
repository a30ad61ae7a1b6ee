import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clockwright.tracer.importers.json_repair import repair

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("text", "meaning", "reason"),
    [
        (rb'{"name": "C:\dir\kernel.cu"}', r"C:\dir\kernel.cu", "single backslash"),
        (rb'{"name": "C:\dir\"}', "C:\\dir\\", "single backslash"),
        (rb'{"name": "C:\dir\", "ts": 1}', "C:\\dir\\", "single backslash"),
        (rb'{"name": "D:\x\new"}', r"D:\x\new", "single backslash"),
        (b'{"name": "say "hi" now"}', 'say "hi" now', "unescaped quote"),
        (b'{"name": "f("a", 1)", "ts": 1}', 'f("a", 1)', "unescaped quote"),
        (b'{"name": "a\x01b"}', "a\x01b", "control byte"),
        (b'{"name": "tab\there"}', "tab\there", "control byte"),
        (b'{"name": "a\xffb"}', "a�b", "not UTF-8"),
    ],
)
def test_a_name_keeps_its_meaning_and_the_mend_is_counted(text, meaning, reason):
    fixed, fixes = repair(text)
    assert json.loads(fixed)["name"] == meaning
    assert any(reason in what for what in fixes)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"dur": 0.-660}', -0.660),
        (b'{"dur": -1.-660, "x": 0}', -1.660),
        (b'{"dur": 0.-66}', -0.066),
        (b'{"dur": 0.-6}', -0.006),
        (b'{"dur": nan}', None),
        (b'{"dur": -inf}', None),
    ],
)
def test_a_number_printed_wrongly_is_read_as_what_was_meant(text, value):
    fixed, fixes = repair(text)
    assert json.loads(fixed)["dur"] == value
    assert sum(fixes.values()) == 1


@given(st.dictionaries(st.text(), values, max_size=4), st.booleans())
def test_sound_json_is_left_as_it_means(fields, ascii_only):
    text = json.dumps(fields, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    fixed, _ = repair(text)
    # Text that holds , "key": within a string may be told apart wrongly, but is never mended,
    # since only text that is no JSON comes here; what comes out must then still be JSON or fail.
    if not any('"' in part for part in _strings(fields)):
        assert json.loads(fixed) == fields


def _strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
