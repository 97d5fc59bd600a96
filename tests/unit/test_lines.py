"""Reading lines: the reader equals a simple reference, wherever its blocks end."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tasks.lines import UTF8_BOM, BadLine, read_lines

LIMIT = 8

Numbered = list[tuple[int, bytes | BadLine]]

FRAGMENTS = st.one_of(
    st.sampled_from(
        [
            b"\n",
            b"\r\n",
            b"\r",
            b" ",
            b"\t",
            UTF8_BOM,
            "é".encode(),
            "\u2028".encode(),
            b"\xff",
            b"{}",
            b"\x00",
        ]
    ),
    st.binary(max_size=12),
)


def reference(data: bytes, limit: int) -> Numbered:
    """What the reader should do, on the whole file at once."""
    lines: Numbered = []
    for number, line in enumerate(data.removeprefix(UTF8_BOM).split(b"\n"), start=1):
        if len(line) > limit:
            lines.append((number, BadLine.TOO_LONG))
        elif line.strip():
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                lines.append((number, BadLine.NOT_UTF8))
            else:
                lines.append((number, line))
    return lines


def split_at(data: bytes, cuts: list[int]) -> list[bytes]:
    """The data in blocks that end at these places; some of them empty."""
    ends = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(ends)]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        # Nothing, in its several forms.
        (b"", []),
        (b"\n\n", []),
        (b" \t\r\n", []),
        (UTF8_BOM, []),
        (UTF8_BOM + b"\n", []),
        # The last line needs no newline, and a final newline makes no line.
        (b"a", [(1, b"a")]),
        (b"a\n", [(1, b"a")]),
        (b"a\nb", [(1, b"a"), (2, b"b")]),
        # Numbers are physical: blank lines count.
        (b"\n\na\n\nb\n", [(3, b"a"), (5, b"b")]),
        # CRLF is accepted; the carriage return is white space that JSON ignores.
        (b"a\r\n\r\nb\r\n", [(1, b"a\r"), (3, b"b\r")]),
        # One byte order mark, at the very start only.
        (UTF8_BOM + b"a", [(1, b"a")]),
        (UTF8_BOM * 2 + b"a", [(1, UTF8_BOM + b"a")]),
        (b"a\n" + UTF8_BOM + b"b", [(1, b"a"), (2, UTF8_BOM + b"b")]),
        # Line separators of Unicode are no line ends.
        ("a\u2028b\n".encode(), [(1, "a\u2028b".encode())]),
        # The limit counts the line without its newline and without the mark.
        (b"12345678\n", [(1, b"12345678")]),
        (b"123456789\nb", [(1, BadLine.TOO_LONG), (2, b"b")]),
        (UTF8_BOM + b"12345678", [(1, b"12345678")]),
        (UTF8_BOM + b"123456789", [(1, BadLine.TOO_LONG)]),
        (b"a\n" + b"x" * 1000, [(1, b"a"), (2, BadLine.TOO_LONG)]),
        # Bytes that are not UTF-8 spoil their own line only.
        (b"a\n\xff\nb", [(1, b"a"), (2, BadLine.NOT_UTF8), (3, b"b")]),
        (b"a\n\xc3", [(1, b"a"), (2, BadLine.NOT_UTF8)]),
        # Two halves of a character on two lines are no character.
        (b"\xc3\n\xa9", [(1, BadLine.NOT_UTF8), (2, BadLine.NOT_UTF8)]),
    ],
)
def test_lines_are_numbered_and_judged_one_by_one(data: bytes, lines: Numbered) -> None:
    assert list(read_lines([data], LIMIT)) == lines
    assert reference(data, LIMIT) == lines, "the reference must agree with the table"
    assert list(read_lines([bytes([byte]) for byte in data], LIMIT)) == lines, "byte by byte"


@given(
    data=st.lists(FRAGMENTS, max_size=20).map(b"".join),
    cuts=st.lists(st.integers(min_value=0), max_size=12),
    limit=st.integers(1, 12),
)
@example(data=UTF8_BOM + b"123456789", cuts=[1, 2], limit=8)
@example(data=b"x" * 30 + b"\nok", cuts=[10, 20, 29, 30, 31], limit=8)
def test_where_blocks_end_makes_no_difference(data: bytes, cuts: list[int], limit: int) -> None:
    assert list(read_lines(split_at(data, cuts), limit)) == reference(data, limit)


@given(data=st.binary(max_size=200), cuts=st.lists(st.integers(min_value=0), max_size=8))
def test_any_bytes_can_be_read(data: bytes, cuts: list[int]) -> None:
    assert list(read_lines(split_at(data, cuts), LIMIT)) == reference(data, LIMIT)


def test_a_line_without_end_is_passed_over_without_being_held() -> None:
    block = b"x" * 1000
    longest = 0

    def blocks() -> "list[bytes]":
        return [block] * 50 + [b"\nend"]

    for number, line in read_lines(blocks(), LIMIT):
        if isinstance(line, bytes):
            longest = max(longest, len(line))
        assert (number, line) in [(1, BadLine.TOO_LONG), (2, b"end")]
    assert longest == len(b"end")
