"""Prompt templates: what they can say, and that they can do nothing else."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import template_filters
from tasks.errors import UserError
from tasks.template import MAX_FILTERS_ON_A_VALUE, MAX_TEMPLATE_CHARACTERS, CannotRender, PromptTemplate
from tasks.template_filters import FILTERS

LONG = 1_000_000

ROW: dict[str, Any] = {
    "text": "Grüße",
    "empty": "",
    "n": 3,
    "f": 1.5,
    "yes": True,
    "nothing": None,
    "tags": ["a", "b"],
    "deep": {"items": [{"name": "x"}], "keys": "k"},
    "my column": "spaced",
    "row": "mine",
}


def rendered(source: str, row: dict[str, Any] = ROW) -> str:
    return PromptTemplate(source).render(row, LONG)


def refused(source: str) -> str:
    with pytest.raises(UserError) as caught:
        PromptTemplate(source)
    assert (caught.value.code, caught.value.param) == ("invalid_template", "template")
    return caught.value.message


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        ("", ""),
        ("Summarise: {{ text }}\n", "Summarise: Grüße\n"),
        # Values as they stand in a prompt.
        ("{{ n }} {{ f }} {{ yes }} [{{ nothing }}]", "3 1.5 true []"),
        ("{{ tags }} {{ deep.items }}", '["a", "b"] [{"name": "x"}]'),
        # Nothing is escaped: it is a prompt, not a page.
        ("<b>{{ '<&>' }}</b>", "<b><&></b>"),
        # Columns whose names are no identifiers, or are those of Python's own attributes.
        ('{{ row["my column"] }} {{ row.text }} {{ row["row"] }}', "spaced Grüße mine"),
        ("{{ deep.items[0].name }} {{ deep.keys }} {{ tags[-1] }} {{ text[:2] }}", "x k b Gr"),
        # Conditions.
        ("{% if n > 2 and not nothing %}many{% elif n %}few{% else %}none{% endif %}", "many"),
        ("{{ 'yes' if 'a' in tags else 'no' }}", "yes"),
        ("{% if missing is defined %}{{ missing }}{% else %}-{% endif %}", "-"),
        ("{{ nothing is none }}", "true"),
        # Filters.
        ("{{ missing | default('?') }} {{ nothing | default(text) }} {{ empty | default('?') }}", "? Grüße "),
        (
            "{{ text | upper }} {{ text | lower }} {{ ' x ' | trim }} {{ 'a b' | title }}",
            "GRÜSSE grüße x A B",
        ),
        ("{{ tags | join(', ') }} {{ tags | first }} {{ tags | last }} {{ empty | first }}", "a, b a b "),
        ("{{ text | length }} {{ deep | length }} {{ text | truncate(3) }} {{ n | truncate }}", "5 2 Grü 3"),
        ("{{ text | replace('ß', 'ss') }} {{ text | replace(empty, '-') }}", "Grüsse -G-r-ü-ß-e-"),
        ("{{ text | tojson }}", '"Grüße"'),
        # Comments and raw text.
        ("a{# not this #}{% raw %}{{ x }}{% endraw %}", "a{{ x }}"),
    ],
)
def test_a_row_fills_in_a_template(source: str, prompt: str) -> None:
    assert rendered(source) == prompt


def test_the_template_in_the_documents_is_one() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "rows.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```jinja\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    template = PromptTemplate(source)
    assert template.columns == {"product", "text"}
    prompt = template.render({"product": "soup", "text": " cold ", "stars": "1"}, LONG)
    assert prompt.endswith("Product: Soup\nThe customer is not happy.\nReview: cold\n")
    documented = set(
        re.findall(r"`(\w+)(?:\([^`]*\))?`", page.partition("Filters:")[2].partition("There are")[0])
    )
    assert documented == set(FILTERS)


@pytest.mark.parametrize(
    ("source", "columns"),
    [
        ("{{ a }}{{ row.b }}{{ row['c d'] }}{{ e.f[g] }}", {"a", "b", "c d", "e", "g"}),
        ("{% if a %}{{ b if c else d }}{% endif %}", {"a", "b", "c", "d"}),
        # Those that may be missing: they have a default, or are asked for.
        ("{{ a | default(b) }}", {"b"}),
        ("{{ a | upper | default('x') }}", {"a"}),
        ("{% if a is defined %}{{ a }}{% endif %}", set()),
        ("{{ row }} and {{ 'text' }}", set()),
    ],
)
def test_a_template_knows_the_columns_that_it_needs(source: str, columns: set[str]) -> None:
    template = PromptTemplate(source)
    assert template.columns == columns
    assert template.missing({"a", "b"}) == sorted(columns - {"a", "b"})


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("line one\n{{ a", "line 2"),
        ("{% if %}", "line 1"),
        ("{% foo %}", "'foo'"),
        ("{{ a() }}", "a call"),
        ("{{ a.upper() }}", "a call"),
        ("\n\n{% for x in a %}{{ x }}{% endfor %}", "a loop on line 3"),
        ("{% set x = 1 %}", "an assignment"),
        ("{% macro f() %}{% endmacro %}", "a macro"),
        ("{{ 'a' * 1000000000 }}", "arithmetic"),
        ("{{ 2 ** 1000000 }}", "arithmetic"),
        ("{{ a % b }}", "arithmetic"),
        ("{{ a ~ b }}", "'~'"),
        ("{{ [a] }}", "'list'"),
        ("{{ {'a': b} }}", "'dict'"),
        ("{% include 'x' %}", "'include'"),
        ("{% import 'x' as y %}", "'import'"),
        ("{% extends 'x' %}", "'extends'"),
        ("{% block x %}{% endblock %}", "'block'"),
        ("{% filter upper %}x{% endfilter %}", "'filterblock'"),
        ("{% autoescape true %}{% endautoescape %}", "line 1"),
        ("{{ a | center(1000000000) }}", "'center'"),
        ("{{ a | format(b) }}", "'format'"),
        ("{{ a | attr('__class__') }}", "'attr'"),
        ("{{ a | unknown }}", "'unknown'"),
        ("{{ a is divisibleby 3 }}", "'divisibleby'"),
        ("{{ a | replace('x') }}", "it takes 2"),
        ("{{ a | upper(1) }}", "it takes 0"),
        ("{{ a | join(', ', 'name') }}", "it takes 0 to 1"),
        ("{{ a | truncate(length=3) }}", "named or spread arguments"),
        ("{{ a | truncate(*b) }}", "named or spread arguments"),
        ("{{ a | truncate(**b) }}", "named or spread arguments"),
        ("{{ self }}", 'row["self"]'),
        ("{{ super }}", 'row["super"]'),
        ("{{ a" + " | tojson" * (MAX_FILTERS_ON_A_VALUE + 1) + " }}", "filters on one value"),
        ("{% if a %}" * 60 + "{% endif %}" * 60, "levels"),
        ("{% if a %}" * 2000 + "{% endif %}" * 2000, "nested too deeply"),
        ("{{ " + "not " * 60 + "a }}", "levels"),
        ("{{ " + "(" * 2000 + "a" + ")" * 2000 + " }}", "nested too deeply"),
        ("{{ " + "9" * 5000 + " }}", "not valid"),
        ("x" * (MAX_TEMPLATE_CHARACTERS + 1), "100,000 characters"),
        ("half \ud800", "Unicode"),
    ],
)
def test_what_is_no_template_is_refused_and_named(source: str, named: str) -> None:
    assert named in refused(source)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("{{ text.upper }}", "'upper'"),
        ("{{ text.__class__ }}", "'__class__'"),
        ("{{ text['__class__'] }}", "'__class__'"),
        ("{{ deep.__init__.__globals__ }}", "'__init__'"),
        ("{{ tags.append }}", "'append'"),
        ("{{ deep.nowhere.further }}", "'nowhere'"),
        ("{{ tags[9] }}", "'9'"),
        ("{{ missing }}", "'missing'"),
        ("{{ n | length }}", "'length'"),
        ("{{ text | join }}", "'join'"),
        ("{{ n | first }}", "'first'"),
        ("{{ text | truncate(text) }}", "'truncate'"),
        ("{{ text[::0] }}", "slice step"),
        ("{{ text < n }}", "'<'"),
        ('{{ "\\ud800" }}', "Unicode"),
    ],
)
def test_a_row_that_does_not_fit_says_why(source: str, named: str) -> None:
    with pytest.raises(CannotRender) as caught:
        rendered(source)
    assert named in str(caught.value)


@pytest.mark.parametrize("source", ["{{ text }}{{ text }}", "x" * 20, "{{ row }}"])
def test_a_prompt_is_no_longer_than_it_may_be(source: str) -> None:
    row = {"text": "x" * 8}
    with pytest.raises(CannotRender, match="longer than 10 characters"):
        PromptTemplate(source).render(row, 10)
    assert PromptTemplate("{{ text }}").render(row, 8) == "x" * 8


@pytest.mark.parametrize(
    "source",
    [
        "{{ many | join(long) }}",
        "{{ long | replace('x', long) }}",
        "{{ long | replace('', long) }}",
        "{{ quotes | tojson | tojson | tojson | tojson }}",
        # Also where nothing of it is printed.
        "{% if many | join(long) %}{% endif %}",
    ],
)
def test_no_filter_makes_a_text_that_memory_cannot_hold(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_filters, "MAX_VALUE_CHARACTERS", 5_000)
    row = {"many": [""] * 1000, "long": "x" * 1000, "quotes": '"' * 1000}
    with pytest.raises(CannotRender, match="more than 5,000 characters"):
        PromptTemplate(source).render(row, LONG)


PIECES = st.sampled_from(
    [
        *("{{ ", " }}", "{% if ", " %}", "{% endif %}", "{% else %}", "{% set x = ", "{% for x in ", "{# "),
        *("a", "row", "self", "a.b", "a['b']", ".__class__", "['__class__']", ".__mro__", "[0]", "[1:2]"),
        *("'text'", "1", "99999999", "none", "true", " | ", " ~ ", " * ", " ** ", " + ", " == ", " in "),
        *(" and ", " not ", " is defined", " if ", " else ", "(", ")", ",", "()", "\n", "-", "é"),
        *FILTERS,
        *(
            "center(99999999)",
            "attr('x')",
            "map('upper')",
            "namespace",
            "range(99999999)",
            "cycler",
            "lipsum",
        ),
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["b", "c"]), inner, max_size=2)
    ),
    max_leaves=8,
)


@given(pieces=st.lists(PIECES, max_size=25), a=VALUES)
def test_any_template_is_refused_or_fills_in_or_says_why_not(pieces: list[str], a: Any) -> None:
    source = "".join(pieces)
    try:
        template = PromptTemplate(source)
    except UserError:
        return
    limit = len(source) + 200 * (len(json.dumps(a)) + 20)
    try:
        prompt = template.render({"a": a}, LONG)
    except CannotRender:
        return
    assert len(prompt) <= limit, "it grew out of proportion"
    for trace in ("<class", "<function", "<built-in", "object at 0x"):
        assert trace not in prompt, "a Python object shows"


@given(name=st.from_regex(r"__[a-z]{1,12}__|[a-z]{1,10}", fullmatch=True), value=VALUES)
def test_no_attribute_of_a_value_can_be_reached(name: str, value: Any) -> None:
    for source in (f"{{{{ a.{name} }}}}", f"{{{{ a['{name}'] }}}}", f"{{{{ (a | default('')).{name} }}}}"):
        try:
            prompt = PromptTemplate(source).render({"a": value}, LONG)
        except (UserError, CannotRender):
            continue
        assert isinstance(value, dict)
        assert name in value
        assert prompt == PromptTemplate("{{ x }}").render({"x": value[name]}, LONG)


@given(text=st.text(), prefix=st.text(alphabet=st.characters(exclude_characters="{#%\r", codec="utf-8")))
def test_text_comes_through_unchanged(text: str, prefix: str) -> None:
    expected = prefix + text
    try:
        expected.encode()
    except UnicodeEncodeError:
        return
    assert rendered(prefix + "{{ a }}", {"a": text}) == expected
