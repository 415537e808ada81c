"""What each program reads and writes: its input, made from a record's number, and how its output
is told apart and compared."""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bench.nexmark import generator

# A day's midnight, UTC, less two hours: the windows of a day are two.
BEGIN_MS = 1_700_006_400_000 - 2 * 3_600_000
MINUTE_MS = 60_000
HOUR_MS = 3_600_000

Row = tuple[bytes, bytes]
Finals = Mapping[tuple[str, bytes], Any]
"""Branch and key -> the last value under it."""


class Kind(enum.Enum):
    """What a program's steps are, as the marks tell programs apart (`bench.programs.marks`)."""

    COLUMNS = "columns"
    FUNCTIONS = "functions"
    VECTORISED = "vectorised"
    OPERATORS = "operators"
    OPERATORS_OF_FUNCTIONS = "operators of functions"
    NEXMARK = "NEXMark"
    KEYED = "keyed"
    """Of an input that is keyed as the program groups it: with and without a repartition topic."""


@dataclass(frozen=True)
class Program:
    """One program. `row` gives key and value of a record by its number; the same in every run.

    The records of a throughput run lie in `span_ms` of record time, in order, so that none is late
    in either system, however its threads take turns.
    """

    name: str
    kind: Kind
    records: int
    row: Callable[[int], Row]
    # The output key (its windows aside) that this record's result comes under; None: filtered out.
    result_key: Callable[[int], bytes | None]
    span_ms: int = 100_000
    begin_ms: int = BEGIN_MS
    # Record time since the begin, by number and the records of the run; None: evenly.
    time_of: Callable[[int, int], int] | None = None
    # What is behind the output topic's name, for each topic.
    branches: tuple[str, ...] = ("",)
    # Bytes behind the key's own: 8 for a window, 16 for a session.
    window_bytes: int = 0
    decode: Callable[[bytes], Any] = json.loads
    # Whether each record has a result soon: latencies can be told.
    live: bool = True
    # Settings of Kafka Streams under at-least-once; the note says why they are not its defaults.
    at_least_once: Mapping[str, str] = field(default_factory=dict)
    # What of the final values is compared; others are what a run's clock makes of them.
    compared: Callable[[Finals], Finals] = field(default=lambda values: values)
    # Whether Kafka Streams has it (`bench/java`).
    in_kafka_streams: bool = True

    def times_ms(self, records: int) -> Iterator[int]:
        """The times of the records of a throughput run."""
        for number in range(records):
            if self.time_of is None:
                yield self.begin_ms + self.span_ms * number // records
            else:
                yield self.begin_ms + self.time_of(number, records)

    def plain_key(self, key: bytes) -> bytes:
        """An output key without its window."""
        return key[: len(key) - self.window_bytes] if self.window_bytes else key


def _trade(number: int) -> Row:
    value = b'{"symbol":"S%03d","price":%d.25,"size":%d,"at":%d,"venue":"XNAS","note":"aaaaaaaa"}'
    price = number * 7 % 300 - 3
    return b"k%d" % (number % 1000), value % (
        number % 500,
        price,
        number % 90 + 1,
        BEGIN_MS + number,
    )


def _symbol(number: int) -> bytes | None:
    return b"S%03d" % (number % 500) if number * 7 % 300 - 3 >= 0 else None


def _keyed_trade(number: int) -> Row:
    return b"S%03d" % (number % 500), _trade(number)[1]


CARRIERS = [
    b"%s%d" % (name, number) for name in (b"UA", b"AA", b"DL", b"B6") for number in range(4)
]


def _flight(number: int) -> Row:
    carrier = CARRIERS[number * 7 % 16]
    delay = b"null" if number % 40 == 0 else b"%d.5" % (number % 97 - 10)
    value = (
        b'{"carrier":"%s","flight":%d,"origin":"EWR","dest":"IAH","dep_delay":%s,"air_time":227}'
    )
    return b"N%05d" % (number % 4000), value % (carrier, number % 6000, delay)


def _keyed_flight(number: int) -> Row:
    return CARRIERS[number * 7 % 16], _flight(number)[1]


def _carrier(number: int) -> bytes | None:
    return CARRIERS[number * 7 % 16] if number % 40 else None


WORDS = 5000
WORDS_A_LINE = 8


def _words(number: int) -> list[bytes]:
    first = number * WORDS_A_LINE
    return [b"Word%d" % ((first + place) * 2_654_435_761 % 2**32 % WORDS) for place in range(8)]


def _line(number: int) -> Row:
    return b"l%d" % (number % 1000), b" ".join(_words(number))


def _last_word(number: int) -> bytes:
    return _words(number)[-1].lower()


USERS = 5000
BURSTS = 12


def _view(number: int) -> Row:
    value = (
        b'{"page":"/articles/%d","ms":%d,"referrer":"https://example.org/","agent":"Mozilla/5.0"}'
    )
    return b"user-%d" % (number % USERS), value % (number % 700, number * 31 % 60_000)


def _user(number: int) -> bytes:
    return b"user-%d" % (number % USERS)


def _view_time(number: int, records: int) -> int:
    """Bursts of an hour, each two hours after the one before."""
    burst, place = divmod(number * BURSTS, records)
    return burst * 2 * HOUR_MS + place * HOUR_MS // records


CUSTOMERS = 10_000
COUNTRIES = (b"NZ", b"AU", b"DE", b"FR", b"US", b"JP", b"BR", b"ZA")


def _order_value(number: int) -> bytes:
    value = b'{"item":"article-%d","country":"%s","price":%d.75,"quantity":%d,"note":"aaaaaaaaaa"}'
    return value % (number % 900, COUNTRIES[number % 8], number * 13 % 400, number * 7 % 11)


def _customer(number: int) -> bytes:
    return b"customer-%d" % (number % CUSTOMERS)


def _order(number: int) -> Row:
    return _customer(number), _order_value(number)


def _order_key(number: int) -> bytes | None:
    return b"order-%d" % number if number * 7 % 11 else None


def _own_order(number: int) -> Row:
    return b"order-%d" % number, _order_value(number)


CLICK_USERS = 2000
TEAMS = 500


def _click(number: int) -> Row:
    user = number * 7 % CLICK_USERS
    value = b'{"user":"user-%d","team":"team-%d","ms":%d,"page":"/articles/%d","agent":"Mozilla"}'
    return b"c%d" % (number % 1000), value % (
        user,
        user % TEAMS,
        number % 101 - 1,
        number % 700,
    )


def _team(number: int) -> bytes | None:
    return b"team-%d" % (number * 7 % CLICK_USERS % TEAMS) if number % 101 else None


CARDS = 5000


def _purchase(number: int) -> Row:
    """Each card's city and limit once in ten records, what is bought with it in the others."""
    card, turn = number % CARDS, number // CARDS
    if turn % 10 == 0:
        city = b'{"kind":"card","city":"city-%d","rate":%d.5,"note":"aaaaaaaaaaaaaaaaaaaa"}'
        return b"card-%d" % card, city % ((card + turn) % 300, card % 7)
    bought = b'{"kind":"purchase","item":"article-%d","amount":%d.25,"note":"aaaaaaaaaaaa"}'
    return b"card-%d" % card, bought % (number % 900, number * 13 % 400)


def _bought_with(number: int) -> bytes | None:
    return b"card-%d" % (number % CARDS) if number // CARDS % 10 else None


def _impression(number: int) -> Row:
    """An advertisement that is shown, and then the click on it."""
    kind, shown = (b"click" if number % 2 else b"view"), number // 2
    value = b'{"kind":"%s","campaign":"campaign-%d","ms":%d,"page":"/articles/%d"}'
    return b"view-%d" % shown, value % (kind, shown % 400, number * 31 % 60_000, number % 700)


def _clicked(number: int) -> bytes | None:
    return b"view-%d" % (number // 2) if number % 2 else None


SENSORS = 1000


def _reading(number: int) -> Row:
    value = b'{"celsius":%d.5,"percent":%d,"battery":"good","note":"aaaaaaaaaaaaaaaaaaaaaaaaaa"}'
    return b"sensor-%d" % (number % SENSORS), value % (number * 7 % 60 - 20, number * 3 % 100)


def _sensor(number: int) -> bytes:
    return b"sensor-%d" % (number % SENSORS)


PEOPLE = 5000
CITIES = 200


def _move(number: int) -> Row:
    value = b'{"city":"city-%d","age":%d,"street":"1 Long Street","note":"aaaaaaaaaaaaaaaaaa"}'
    person = number % PEOPLE
    return b"person-%d" % person, value % (_city_of(number), person % 80)


def _city_of(number: int) -> int:
    return (number % PEOPLE + number // PEOPLE * 7) % CITIES


def _new_city(number: int) -> bytes:
    return b"city-%d" % _city_of(number)


FLEETS = 500
VEHICLES = 20_000


def _vehicle(number: int) -> Row:
    """The fleets first, then vehicles that go from one fleet to another."""
    if number < FLEETS:
        name = b'{"kind":"fleet","name":"fleet of city %d","note":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}'
        return b"fleet-%d" % number, name % (number % 90)
    vehicle, turn = number % VEHICLES, number // VEHICLES
    value = b'{"kind":"vehicle","fleet":"fleet-%d","km":%d.5,"note":"aaaaaaaaaaaaaaaaaaaaaaa"}'
    return b"vehicle-%d" % vehicle, value % ((vehicle + turn * 7) % FLEETS, number * 13 % 400)


def _of_fleet(number: int) -> bytes | None:
    return b"vehicle-%d" % (number % VEHICLES) if number >= FLEETS else None


REPEATED_AFTER = 1000


def _payment_id(number: int) -> int:
    """Each comes once, and every other record is sent again some time later."""
    new, again = divmod(number, 2)
    return new - REPEATED_AFTER if again and new >= REPEATED_AFTER else new


def _payment(number: int) -> Row:
    payment = _payment_id(number)
    value = b'{"id":"payment-%d","amount":%d.25,"country":"%s","note":"aaaaaaaaaaaaaaaaaaaaaaaa"}'
    filled = value % (payment, payment * 13 % 400 + 1, COUNTRIES[payment % 8])
    return b"payment-%d" % payment, filled


def _paid(number: int) -> bytes | None:
    return None if number % 2 else b"payment-%d" % _payment_id(number)


def _booking(number: int) -> Row:
    """What each customer orders, then pays, one after the other."""
    kind = b"payment" if number // CUSTOMERS % 2 else b"order"
    value = b'{"kind":"%s","amount":%d.25,"currency":"NZD","note":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}'
    return _customer(number), value % (kind, number * 13 % 400)


def _count(value: bytes) -> int:
    return int(struct.unpack(">q", value)[0])


def over_all_windows(results: Finals) -> Finals:
    """Of the query with windows of the clock: the bids of each bidder in all of them."""
    added: dict[tuple[str, bytes], Any] = {}
    for (branch, key), value in results.items():
        place = branch, key[:8]
        before = added.get(place, {"bid_count": 0})["bid_count"]
        added[place] = {"bidder": value["bidder"], "bid_count": before + value["bid_count"]}
    return added


NEXMARK_IN_KAFKA_STREAMS = ("q0", "q1", "q2", "q3", "q4", "q5", "q7", "q8")
NEXMARK = (*NEXMARK_IN_KAFKA_STREAMS, "q9", "q11", "q12", "q16", "q17", "q18", "q19", "q20")
"""What `bench nexmark` runs: the queries of examples/nexmark.py."""


def _query(name: str) -> Program:
    return Program(
        name,
        Kind.NEXMARK,
        500_000,
        generator.event,
        # A result is of several events, and its event's time is not that of sending.
        lambda number: None,
        begin_ms=generator.BEGIN_MS,
        time_of=lambda number, _: generator.time_ms(number) - generator.BEGIN_MS,
        live=False,
        compared=over_all_windows if name == "q12" else lambda values: values,
        in_kafka_streams=name in NEXMARK_IN_KAFKA_STREAMS,
    )


_TRADES = Program("trades", Kind.COLUMNS, 1_000_000, _trade, _symbol, window_bytes=8)
_FLIGHTS = Program(
    "flights",
    Kind.COLUMNS,
    500_000,
    _flight,
    _carrier,
    span_ms=2 * HOUR_MS + 30 * MINUTE_MS,
    window_bytes=8,
)


def _keyed(program: Program, row: Callable[[int], Row]) -> list[Program]:
    """The program over records that are keyed as they are grouped, in two ways."""
    keyed = replace(program, kind=Kind.KEYED, row=row, in_kafka_streams=False)
    return [replace(keyed, name=f"{program.name}-{how}") for how in ("rekeyed", "in-place")]


PROGRAMS = {
    program.name: program
    for program in (
        _TRADES,
        _FLIGHTS,
        Program("words", Kind.COLUMNS, 200_000, _line, _last_word, decode=_count),
        Program(
            "sessions",
            Kind.COLUMNS,
            500_000,
            _view,
            _user,
            time_of=_view_time,
            window_bytes=16,
        ),
        Program("baskets", Kind.FUNCTIONS, 500_000, _order, _customer),
        Program("invoices", Kind.VECTORISED, 500_000, _order, _customer),
        Program(
            "split",
            Kind.COLUMNS,
            500_000,
            _own_order,
            _order_key,
            branches=("-large", "-home", "-abroad"),
        ),
        Program(
            "chain",
            Kind.COLUMNS,
            500_000,
            _click,
            _team,
            # Its second store's input leaves the first one's cache with a commit, 30 s apart by
            # default, and closing early would lose what was still on its way.
            at_least_once={"commit.interval.ms": "100"},
        ),
        Program("enrich", Kind.OPERATORS, 500_000, _purchase, _bought_with),
        Program("pairs", Kind.OPERATORS, 500_000, _impression, _clicked),
        Program("final", Kind.OPERATORS, 500_000, _reading, _sensor, window_bytes=8, live=False),
        Program("cities", Kind.OPERATORS, 500_000, _move, _new_city),
        Program("fleets", Kind.OPERATORS, 500_000, _vehicle, _of_fleet),
        Program("once", Kind.OPERATORS, 500_000, _payment, _paid),
        Program("bursts", Kind.OPERATORS, 500_000, _reading, _sensor, window_bytes=8),
        Program("accounts", Kind.OPERATORS_OF_FUNCTIONS, 500_000, _booking, _customer),
        *map(_query, NEXMARK),
        *_keyed(_TRADES, _keyed_trade),
        *_keyed(_FLIGHTS, _keyed_flight),
    )
}
WHOLE = ("trades", "flights", "words", "sessions", "baskets", "invoices", "split", "chain")
"""What `bench programs` runs."""
OPERATORS = (
    "trades",
    "sessions",
    "enrich",
    "pairs",
    "final",
    "cities",
    "fleets",
    "once",
    "bursts",
    "accounts",
    "baskets",
)
"""What `bench operators` runs: an operator each, in a program with JSON and Columns."""
