"""Letters counted by cause while they are read, and taken in portions."""

import pytest

from everflow.kafka import dead_letters
from everflow.kafka.dead_letters import (
    AT_ONCE,
    AT_ONCE_BYTES,
    REPLAYED,
    REPLAYED_FROM,
    SHOWN_BYTES,
    LetterPlace,
    RawLetter,
    letter_of,
    letters,
    portions,
    refusal,
    sample_of,
    tallied,
)
from everflow.kafka.letter_headers import Header, of_the_record


def raw(offset: int, value: bytes = b"v", node: str = "parse", topic: str = "in") -> RawLetter:
    told = {"exception": "ValueError", "message": "ValueError: no", "stacktrace": "here"}
    told |= {"topic": topic, "partition": "0", "offset": str(offset)}
    headers = [(f"__streams.errors.{name}", text.encode()) for name, text in told.items() if text]
    headers.append(("__everflow.errors.node", node.encode()))
    return RawLetter(LetterPlace(0, offset), 7_000, b"k", value, headers)


def note(offset: int, of: int) -> RawLetter:
    mark = str(LetterPlace(0, of)).encode()
    return RawLetter(
        LetterPlace(0, offset), 0, b"%s/%s" % (REPLAYED.encode(), mark), b"", [(REPLAYED, mark)]
    )


NAMED_LIKE_OURS: list[Header] = [
    (REPLAYED, b"x"),
    (REPLAYED, b"\xff\xfe"),
    (REPLAYED, b"0@0"),
    (REPLAYED, None),
    (REPLAYED_FROM, b"other-0@1"),
    ("__everflow.errors.left.out", b"x"),
    ("__everflow.errors.node", b"elsewhere"),
    ("__everflow.errors.", b""),
    ("__everflow.own.", b"1"),
    ("__everflow.own.__everflow.own.trace", b"2"),
    ("__everflow.own.__everflow.replayed", b"0@0"),
    ("__streams.errors.exception", b"KeyError"),
    ("__streams.errors.topic", b"elsewhere"),
    ("__streams.errors.partition", b"9" * 5_000),
    ("__streams.errors.of.tomorrow", b"x"),
    ("trace", b"x"),
    ("", None),
]


@pytest.mark.parametrize("renamed", [True, False], ids=["letter", "letter of an earlier version"])
@pytest.mark.parametrize("header", [[one] for one in NAMED_LIKE_OURS] + [NAMED_LIKE_OURS * 2])
def test_no_header_of_a_record_is_taken_for_ours(renamed: bool, header: list[Header]) -> None:
    if not renamed:
        header = [one for one in header if not one[0].startswith("__everflow.own.")]
    told = raw(1)
    theirs = of_the_record(header) if renamed else header
    odd = told._replace(key=b"__everflow.replayed/0@0", headers=[*theirs, *told.headers])
    first, second = letters([raw(0), odd])
    assert (first.replayed, second.replayed) == (False, False)
    assert list(second.own) == header
    assert (second.about, second.parts_left_out) == (letter_of(told).about, "")
    assert refusal("dead", second, None) is None
    (tally,) = tallied([raw(0), odd]).values()
    assert (tally.letters, tally.open.keys()) == (2, {LetterPlace(0, 0), LetterPlace(0, 1)})
    first, second = letters([raw(0), odd, note(2, 1)])
    assert (first.replayed, second.replayed) == (False, True)


@pytest.mark.parametrize(
    "made",
    [
        note(5, 0)._replace(key=None),
        note(5, 0)._replace(key=b"__everflow.replayed/0@1"),
        note(5, 0)._replace(place=LetterPlace(1, 5)),
        note(5, 7),
        note(5, 5),
        note(5, 0)._replace(headers=[(REPLAYED, b"x")]),
        note(5, 0)._replace(headers=[(REPLAYED, b"\xff")]),
        note(5, 0)._replace(headers=[(REPLAYED, "\u0660@\u0660".encode())]),
        note(5, 0)._replace(headers=[(REPLAYED, b"0@" + b"9" * 5_000)]),
        note(5, 0)._replace(headers=[(REPLAYED, None)]),
        note(5, 0)._replace(headers=[(REPLAYED, b"0@0"), (REPLAYED, b"0@1")]),
    ],
)
def test_what_is_no_note_is_passed_over(made: RawLetter, caplog: pytest.LogCaptureFixture) -> None:
    found = letters([raw(0), raw(1), made])
    assert [letter.replayed for letter in found] == [False, False]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(made.place) in caplog.text
    (tally,) = tallied([raw(0), raw(1), made]).values()
    assert len(tally.open) == 2


def test_a_letter_of_kafka_streams_keeps_the_headers_of_its_record() -> None:
    """It renames none: what it adds stands behind those of the record."""
    own: list[Header] = [("__streams.errors.topic", b"first"), ("__everflow.own.x", b"y")]
    told = [(name, data) for name, data in raw(0).headers if name.startswith("__streams.")]
    letter = letter_of(raw(0)._replace(headers=[*own, *told]))
    assert (letter.source, list(letter.own)) == ("in", own)


def test_what_was_replayed_is_no_longer_open() -> None:
    found = tallied([raw(0), raw(1), note(2, 0), raw(3, node="look-up"), note(4, 99)])
    parse = found["ValueError", "parse", "in"]
    assert (parse.letters, parse.open.keys()) == (2, {LetterPlace(0, 1)})
    assert not parse.sample().replayed
    assert found["ValueError", "look-up", "in"].open.keys() == {LetterPlace(0, 3)}


def test_a_sample_says_that_it_was_replayed() -> None:
    assert tallied([raw(0), note(1, 0)])["ValueError", "parse", "in"].sample().replayed


def test_where_a_letter_came_from_has_to_be_known() -> None:
    (tally,) = tallied([raw(0, topic="")]).values()
    assert (tally.letters, tally.open.keys()) == (1, set())


def test_portions_are_what_a_transaction_takes() -> None:
    chosen = {LetterPlace(0, n) for n in range(AT_ONCE + 1)}
    small = list(portions((raw(n) for n in range(2 * AT_ONCE)), chosen))
    assert [len(portion) for portion in small] == [AT_ONCE, 1]
    large = list(portions((raw(n, b"v" * AT_ONCE_BYTES) for n in range(3)), chosen))
    assert [len(portion) for portion in large] == [1, 1, 1]
    assert list(portions([raw(AT_ONCE + 7)], chosen)) == []


def test_a_sample_has_the_beginning_of_what_is_large() -> None:
    text = sample_of(dead_letters.letter_of(raw(0, b"x" * 5_000)))
    assert "x" * SHOWN_BYTES in text
    assert "x" * (SHOWN_BYTES + 1) not in text
    assert "value has 5,000 bytes" in text


def test_a_letter_of_others_may_not_say_where_it_came_from() -> None:
    plain = dead_letters.letter_of(RawLetter(LetterPlace(2, 17), 0, b"k", b"v", [("own", b"x")]))
    assert (plain.source, plain.source_partition) == (None, None)
    text = str(refusal("dead", plain, None))
    assert "dead-2@17" in text
    assert "`everflow dlq replay dead --letter 2@17 --to TOPIC`" in text
    for partition, wanted in ((b"3", 3), (b"", None), (b"-1", None), (b"three", None)):
        headers = [("__streams.errors.topic", b"in"), ("__streams.errors.partition", partition)]
        letter = dead_letters.letter_of(RawLetter(LetterPlace(0, 0), 0, None, None, headers))
        assert (letter.source, letter.source_partition) == ("in", wanted)


def test_a_letter_that_has_not_all_of_its_record_is_not_replayed() -> None:
    note = ("__everflow.errors.left.out", b"value (990,000 bytes)")
    cut = raw(3)._replace(value=None)
    cut = cut._replace(headers=[*cut.headers, ("__streams.errors.partition", b"1"), note])
    (tally,) = tallied([cut]).values()
    assert (tally.letters, tally.open.keys()) == (1, set())
    letter = dead_letters.letter_of(cut)
    assert "left.out     value (990,000 bytes)" in dead_letters.text_of(letter)
    for target in (None, "elsewhere"):
        text = str(refusal("dead", letter, target))
        assert "dead letter dead-0@3 has not all" in text
        assert "raise max.message.bytes of dead" in text
    assert refusal("dead", dead_letters.letter_of(raw(4)), None) is None
