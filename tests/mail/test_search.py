from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mbxd.mail.search import COMMON_KEPT, RARE
from mbxd.mail.snippets import LENGTH, pattern, snippet
from tests.mail.support import Mail


def test_words_are_found_in_subject_and_body_newest_first(mail: Mail) -> None:
    in_body = mail.send(body="The Parser fails on Ünicode")
    in_subject = mail.send(subject="parser again", body="-")
    mail.send(body="nothing of the kind")
    assert mail.found(1, "parser") == [in_subject, in_body]
    assert mail.found(2, "PARSER unicode") == [in_body]
    assert mail.store.search(1, "unicode").letters[0].snippet == "The Parser fails on [Ünicode]"


def test_each_sees_its_own(mail: Mail) -> None:
    one_to_two, two_to_three = mail.send(1, (2,)), mail.send(2, (3,))
    for identity, scope, expected in (
        (1, "mine", [one_to_two]),
        (2, "mine", [two_to_three, one_to_two]),
        (2, "received", [one_to_two]),
        (2, "sent", [two_to_three]),
        (4, "mine", []),
        (None, "mine", [two_to_three, one_to_two]),
    ):
        assert mail.found(identity, "body", scope=scope) == expected


@pytest.mark.parametrize("others", [RARE - 30, RARE + 30], ids=["a rare word", "a common word"])
def test_each_sees_its_own_however_common_the_word_is(mail: Mail, others: int) -> None:
    """A rare word is looked up by itself first, a common one together with who takes part: the answers are the same."""
    mine = [mail.send(*way) for way in [(1, (2,)), (11, (1, 12)), (2, (21, 1)), (12, (1,)), (1, (2,))]]
    for number in range(others):
        mail.send(11 + number % 3, (21, 111, 12))
    mine += [mail.send(1, (11,)), mail.send(21, (11, 1))]
    mine.reverse()
    assert mail.found(1, "body") == mine
    assert mail.found(1, "body", limit=4) == mine[:4]
    assert mail.store.search(1, "body", limit=4).cursor == mine[3]
    assert mail.found(1, "body", limit=4, before=mine[3]) == mine[4:]
    assert mail.found(1, "body", scope="sent") == [mine[place] for place in (1, 2, 6)]
    assert mail.found(1, "body", scope="received") == [mine[place] for place in (0, 3, 4, 5)]


def test_words_are_found_to_be_common_once_and_few_are_kept(mail: Mail) -> None:
    mine = mail.send(1, (2,))
    for _ in range(RARE + 1):
        mail.send(11, (12,))
    for number in range(COMMON_KEPT + 5):
        for _ in range(2):
            assert mail.found(1, f"body OR other{number}") == [mine]
    assert len(mail.store._common) == COMMON_KEPT
    assert mail.found(1, "other1") == []
    assert len(mail.store._common) == COMMON_KEPT, "that is rare"


@pytest.mark.parametrize(
    "query",
    [
        "body) OR (body",
        "body OR who:r2",
        "who : s1",
        "{who} : s1",
        'body" OR "body',
        "r2",
        "s1 OR body",
        "body\0",
        "body) OR subject:(subject",
    ],
)
def test_no_query_reaches_others_mail(mail: Mail, query: str) -> None:
    mail.send(1, (2,))
    assert mail.found(3, query) == []
    mail.send(1, (22,))
    assert mail.found(12, query) == []


def test_who_takes_part_is_no_text(mail: Mail) -> None:
    mail.send(1, (2,))
    assert mail.found(1, "r2") == []
    assert mail.found(None, "s1") == []


def test_the_language_of_fts5_works(mail: Mail) -> None:
    one = mail.send(subject="alpha", body="one two three")
    two = mail.send(subject="beta", body="three two one alphabet")
    assert mail.found(1, '"two three"') == [one]
    assert mail.found(1, "alpha*") == [two, one]
    assert mail.found(1, "subject : alpha") == [one]
    assert mail.found(1, "three NOT alphabet") == [one]
    assert mail.found(1, "alpha OR beta") == [two, one]


@pytest.mark.parametrize(
    "query",
    [
        "src/app.py",
        "foo-bar:",
        'say "',
        "(",
        "AND",
        "what?",
        "a AND",
        "sender: x",
        "don't",
        "* star",
        "^",
        "NEAR(",
        "^x +",
    ],
)
def test_what_fts5_refuses_is_plain_words(mail: Mail, query: str) -> None:
    message = mail.send(body=f"before {query} after")
    has_words = any(char.isalnum() for char in query)
    assert mail.found(1, query) == ([message] if has_words else [])


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=30) | st.text("ab \"'()*^:{}-+,ANDORT", max_size=20))
def test_no_query_is_an_error(mail: Mail, query: str) -> None:
    if mail.store.unread(2) == 0:
        mail.send(body="a b ab")
    mail.found(1, query)
    assert mail.found(3, query) == []


def test_long_queries_are_cut(mail: Mail) -> None:
    message = mail.send(body="word")
    assert mail.found(1, "word " * 1000) == [message]
    assert mail.found(1, "(" * 1000 + "word") == [message]
    assert mail.found(1, "word/ " * 300) == [message]


def test_pages(mail: Mail) -> None:
    ids = [mail.send() for _ in range(5)]
    page = mail.store.search(1, "body", limit=3)
    assert [one.id for one in page.letters] == ids[:1:-1]
    assert page.cursor == ids[2]
    rest = mail.store.search(1, "body", limit=3, before=page.cursor)
    assert ([one.id for one in rest.letters], rest.cursor) == (ids[1::-1], None)


def test_snippets_show_where_the_word_is(mail: Mail) -> None:
    mail.send(body="begin " * 100 + "needle" + " end" * 100)
    [found] = mail.store.search(1, "needle").letters
    assert found.snippet is not None
    assert found.snippet.startswith("…")
    assert " [needle] end" in found.snippet
    assert found.snippet.endswith("…")
    [found] = mail.store.search(1, "subject").letters
    assert (found.snippet or "").startswith("begin begin")
    mail.send(body="x" * 500)
    [found] = mail.store.search(1, "x*").letters
    assert found.snippet == f"[{'x' * 120}]…"


def test_each_message_has_the_snippet_of_its_own_body(mail: Mail) -> None:
    sent = [mail.send(body=f"needle in body {number}") for number in range(5)]
    for query in ("needle", "needle OR haystack"):
        page = mail.store.search(1, query, limit=3)
        found = [(one.id, one.snippet) for one in page.letters]
        assert found == [(sent[number], f"[needle] in body {number}") for number in (4, 3, 2)]
        page = mail.store.search(1, query, limit=3, before=page.cursor or "")
        assert [one.snippet for one in page.letters] == ["[needle] in body 1", "[needle] in body 0"]


def test_a_word_repeated_all_over_takes_no_time(mail: Mail) -> None:
    began = time.process_time()
    message = mail.send(body="a " * 130_000)
    assert mail.found(1, "a OR a") == [message]
    assert time.process_time() - began < 2


@given(st.text(max_size=300), st.text(min_size=1, max_size=20))
def test_a_snippet_is_some_of_the_text(text: str, query: str) -> None:
    cut = snippet(text, pattern(query))
    assert cut.replace("[", "").replace("]", "").strip("…") in text.replace("[", "").replace("]", "")
    assert len(cut) <= 3 * LENGTH


def test_marks() -> None:
    for text, query, marked in (
        ("Größe, GROSSE grosse", "grosse", "Größe, [GROSSE] [grosse]"),
        ("snake_case and cases", "case OR snake", "[snake]_[case] and cases"),
        ("cased case", "cas*", "[cased] [case]"),
        ("İstanbul é", "istanbul e", "[İstanbul] [é]"),
        ("ab aab ab abab", "ab", "[ab] aab [ab] abab"),
        ("ab aab é abc", "b OR ab*", "[ab] aab é [abc]"),
    ):
        assert snippet(text, pattern(query)) == marked


@pytest.mark.parametrize("query", ["who: call", "WHO:call", '"who" : call', "{subject who} : call", "- who : call"])
def test_who_is_a_word_like_any_other(mail: Mail, query: str) -> None:
    found = mail.send(1, (2,), subject="who subject", body="Tell me who: call them?")
    assert mail.found(2, query) == [found]
    assert mail.found(2, "who: r2") == []


def test_a_query_may_name_subject_and_body(mail: Mail) -> None:
    in_subject, in_body = mail.send(1, (2,), subject="needle"), mail.send(1, (2,), body="needle")
    assert mail.found(2, "subject: needle") == [in_subject]
    assert mail.found(2, "- subject: needle") == [in_body]
    assert mail.found(2, "{subject body} : needle") == [in_body, in_subject]
