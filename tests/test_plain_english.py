"""What can be counted of plain English: how sentences begin, how long they are, how many words.

A person reads the rest (CONTRIBUTING.md).
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bench_lib"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

MOST_WORDS_A_SENTENCE = 13.0
"""On average over README.md and docs/*.md."""
MOST_WORDS = 30_700
"""In docs/*.md, code and tables among them."""

BEGINNINGS = re.compile(r"(?:What|Of|Where|Which|Whose|None\s+(?:where|of))\b")
ENDED = re.compile(r"(?<=[.!?:;])\s+|\n\s*\n")


# ---- how docstrings' sentences begin ------------------------------------------------------


def docstrings(source: str) -> Iterator[str]:
    """Yield every string that stands by itself: of modules, classes, functions, attributes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield inspect.cleandoc(text)


def beginning_badly(source: str) -> list[str]:
    """Return docstrings' sentences without their subject first."""
    sentences = [each for text in docstrings(source) for each in ENDED.split(text)]
    return [sentence for sentence in sentences if BEGINNINGS.match(sentence)]


def test_docstrings_begin_their_sentences_with_the_subject():
    found = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        found[path.relative_to(PACKAGE).parts[0]] += beginning_badly(path.read_text())
    assert {room: bad for room, bad in found.items() if bad} == {}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param("What one kernel runs with.", 1, id="what"),
        pytest.param("A ratio; None where it is unknown.", 1, id="none where"),
        pytest.param("The ratio.  Of a host-bound case\n    the device's own.", 1, id="second"),
        pytest.param("The ratio.\n\n    Where they differ, it is measured.", 1, id="paragraph"),
        pytest.param("The ratio, of which none is known, and what it means.", 0, id="within"),
        pytest.param("Official figures; None if unknown.", 0, id="fine"),
    ],
)
def test_a_sentence_that_begins_badly_is_found_wherever_it_stands(text, count):
    source = f'"""{text}"""\nclass A:\n    """{text}"""\n    a = 1\n    """{text}"""\n'
    assert len(beginning_badly(source)) == 3 * count


# ---- how much the pages say, and in what sentences ---------------------------------------

COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
FENCED = re.compile(r"^( *)(`{3,}).*?^\1\2 *$", re.DOTALL | re.MULTILINE)
TABLE = re.compile(r"(?:^ *\|.*\n?)+", re.MULTILINE)
INLINE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
PARAGRAPH = re.compile(r"\n\s*\n|\n(?= *(?:[-*+]|\d+\.) )|\n(?=#)")
MARK = re.compile(r"\s*(?:[-*+]|\d+\.)\s")
SENTENCE = re.compile(r"(.+?[.!?:][\"')*_]*)(?:\s+|$)", re.DOTALL)


def sentence_lengths(page: str) -> list[int]:
    """Return how many words each sentence of a page has.

    It ends with a full stop, an exclamation mark, a question mark or a colon; headings do not.
    A block of code, a table and inline code are one word.
    """
    text = TABLE.sub("TABLE\n", FENCED.sub("CODE", COMMENT.sub("", page)))
    paragraphs = PARAGRAPH.split(INLINE.sub("CODE", text))
    plain = (MARK.sub("", each, count=1) if MARK.match(each) else each for each in paragraphs)
    found = [len(one.split()) for each in plain for one in SENTENCE.findall(each)]
    return [length for length in found if length]


def test_sentences_of_the_docs_are_short_on_average():
    lengths = [length for page in PAGES for length in sentence_lengths(page.read_text())]
    assert sum(lengths) / len(lengths) <= MOST_WORDS_A_SENTENCE


def test_the_docs_are_no_longer_than_they_have_to_be():
    pages = [page.read_text() for page in PAGES if page.parent.name == "docs"]
    assert sum(len(page.split()) for page in pages) <= MOST_WORDS


@pytest.mark.parametrize(
    ("page", "lengths"),
    [
        pytest.param("One two.  Three!\nFour five six?\n", [2, 1, 3], id="ended"),
        pytest.param("# One two\n\nThree: four five.\n", [1, 2], id="heading and colon"),
        pytest.param("- one two.\n- three\n  four.\n1. five\n2. six.\n", [2, 2, 1], id="lists"),
        pytest.param("See:\n\n```sh\na b c. d\n```\n\nIt is fine.\n", [1, 3], id="block of code"),
        pytest.param("As `a b. c` [says it](x.md) now.\n", [5], id="inline code and link"),
        pytest.param("Said:\n\n| a | b |\n|---|---|\n| c d. e | f |\n", [1], id="table"),
        pytest.param("With 2.5 ms, and bench_lib.model (said *so.*) Yes.\n", [7, 1], id="points"),
    ],
)
def test_words_and_sentences_are_counted(page, lengths):
    assert sentence_lengths(page) == lengths
