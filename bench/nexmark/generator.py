"""The events of NEXMark, each made from its number: persons who register, auctions, and bids.

As in the generator of github.com/nexmark/nexmark with its default settings: of 50 events one is a
person, three are auctions and 46 are bids; half of the bids go to a hot auction, three quarters
come from a hot bidder, three quarters of the auctions are a hot seller's; and some name an auction
or a person that comes a little later. That generator draws anew in every run; here the number of an
event seeds what is drawn for it, so that each run has the same events. Its texts are slices of one
random text, as that generator's `extra` is. It makes 10,000 events a second, in record time; here
it is 1,000, so that a run of 50,000 records has several windows, and no two events the same time.
"""

from __future__ import annotations

import math
from functools import cache

PERSONS, AUCTIONS, BIDS = 1, 3, 46
EPOCH = PERSONS + AUCTIONS + BIDS
# The last 5 s of a day and what follows, so that the queries by day have two of them.
BEGIN_MS = 1_700_006_400_000 - 5_000
EVENTS_PER_MS = 1

FIRST_PERSON = FIRST_AUCTION = 1000
FIRST_CATEGORY = 10
CATEGORIES = 5
HOT_AUCTION, HOT_BIDDER, HOT_SELLER, HOT_CHANNEL = 2, 4, 4, 2
HOT_GROUP = 100
IN_FLIGHT_AUCTIONS = 100
ACTIVE_PEOPLE = 1000
LEAD = 10
PERSON_BYTES, AUCTION_BYTES, BID_BYTES = 200, 500, 100
CHANNELS = 10_000
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")

STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
)
FIRST_NAMES = (
    *("Peter", "Paul", "Luke", "John", "Saul", "Vicky"),
    *("Kate", "Julie", "Sarah", "Deiter", "Walter"),
)
LAST_NAMES = (
    *("Shultz", "Abrams", "Spencer", "White", "Bartels"),
    *("Walton", "Smith", "Jones", "Noris"),
)

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_SEED = 20_240_229
_TEXT_SIZE = 1 << 16


class _Draws:
    """Java's SplittableRandom (SplitMix64), seeded by a number."""

    def __init__(self, number: int) -> None:
        self._state = (_SEED + number * 0xD1342543DE82EF95) & _MASK

    def below(self, bound: int) -> int:
        self._state = (self._state + _GOLDEN) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return (z ^ (z >> 31)) % bound

    def price(self) -> int:
        """From 100 to 100,000,000; the logarithm is drawn evenly."""
        return round(math.pow(10.0, self.below(1 << 53) / (1 << 53) * 6.0) * 100.0)

    def text(self, length: int) -> str:
        start = self.below(_TEXT_SIZE - length)
        return _text()[start : start + length]

    def name(self, longest: int) -> str:
        return self.text(3 + self.below(longest - 3))

    def extra(self, so_far: int, average: int) -> str:
        """What makes an event as long as it is to be on average, more or less a fifth."""
        wanted = max(0, average - so_far)
        spread = round(wanted * 0.2)
        return self.text(wanted - spread + (self.below(2 * spread) if spread else 0))


@cache
def _text() -> str:
    draws = _Draws(-1)
    return "".join(chr(ord("a") + draws.below(26)) for _ in range(_TEXT_SIZE))


@cache
def _url(channel: int) -> str:
    """Of a channel. Nine of ten have its number in it, the hot ones, below 0, do not."""
    draws = _Draws(-10 - CHANNELS - channel)
    path = "/".join(draws.name(5) for _ in range(3))
    ends = f"&channel_id={channel}" if channel >= 0 and draws.below(10) else ""
    return f"https://www.nexmark.com/{path}/item.htm?query=1{ends}"


def time_ms(number: int) -> int:
    """The time of an event."""
    return BEGIN_MS + number // EVENTS_PER_MS


def event(number: int) -> tuple[bytes, bytes]:
    """Key (the number) and JSON value of an event."""
    offset = number % EPOCH
    draws = _Draws(number)
    if offset < PERSONS:
        value = _person(number, draws)
    elif offset < PERSONS + AUCTIONS:
        value = _auction(number, draws)
    else:
        value = _bid(number, draws)
    return b"%d" % number, value.encode()


def _last_person(number: int) -> int:
    return number // EPOCH


def _last_auction(number: int) -> int:
    """The number of the latest auction; of an event that is an auction, its own."""
    epoch, offset = divmod(number, EPOCH)
    if offset < PERSONS:
        return epoch * AUCTIONS - 1
    return epoch * AUCTIONS + min(offset - PERSONS, AUCTIONS - 1)


def _some_person(number: int, draws: _Draws) -> int:
    people = _last_person(number) + 1
    active = min(people, ACTIVE_PEOPLE)
    return people - active + draws.below(active + LEAD)


def _some_auction(number: int, draws: _Draws) -> int:
    last = _last_auction(number)
    first = max(last - IN_FLIGHT_AUCTIONS, 0)
    return first + draws.below(last - first + 1 + LEAD)


def _person(number: int, draws: _Draws) -> str:
    first, last = (names[draws.below(len(names))] for names in (FIRST_NAMES, LAST_NAMES))
    email = f"{draws.name(7)}@{draws.name(5)}.com"
    card = " ".join(f"{draws.below(10_000):04d}" for _ in range(4))
    city, state = (places[draws.below(len(places))] for places in (CITIES, STATES))
    size = 8 + len(first) + 1 + len(last) + len(email) + len(card) + len(city) + len(state)
    return (
        f'{{"event_type":0,"person":{{"id":{FIRST_PERSON + _last_person(number)},'
        f'"name":"{first} {last}","emailAddress":"{email}","creditCard":"{card}",'
        f'"city":"{city}","state":"{state}","dateTime":{time_ms(number)},'
        f'"extra":"{draws.extra(size, PERSON_BYTES)}"}}}}'
    )


def _auction(number: int, draws: _Draws) -> str:
    if draws.below(HOT_SELLER):
        seller = _last_person(number) // HOT_GROUP * HOT_GROUP
    else:
        seller = _some_person(number, draws)
    category = FIRST_CATEGORY + draws.below(CATEGORIES)
    initial = draws.price()
    # On average as long as it takes until so many further auctions are there.
    horizon_ms = IN_FLIGHT_AUCTIONS * EPOCH // AUCTIONS // EVENTS_PER_MS
    expires = time_ms(number) + 1 + draws.below(2 * horizon_ms)
    name, description = draws.name(20), draws.name(100)
    reserve = initial + draws.price()
    size = 8 + len(name) + len(description) + 40
    return (
        f'{{"event_type":1,"auction":{{"id":{FIRST_AUCTION + _last_auction(number)},'
        f'"itemName":"{name}","description":"{description}","initialBid":{initial},'
        f'"reserve":{reserve},"dateTime":{time_ms(number)},"expires":{expires},'
        f'"seller":{FIRST_PERSON + seller},"category":{category},'
        f'"extra":"{draws.extra(size, AUCTION_BYTES)}"}}}}'
    )


def _bid(number: int, draws: _Draws) -> str:
    if draws.below(HOT_AUCTION):
        auction = _last_auction(number) // HOT_GROUP * HOT_GROUP
    else:
        auction = _some_auction(number, draws)
    if draws.below(HOT_BIDDER):  # another one than the hot seller
        bidder = _last_person(number) // HOT_GROUP * HOT_GROUP + 1
    else:
        bidder = _some_person(number, draws)
    price = draws.price()
    if draws.below(HOT_CHANNEL):
        hot = draws.below(len(HOT_CHANNELS))
        channel, url = HOT_CHANNELS[hot], _url(-1 - hot)
    else:
        place = draws.below(CHANNELS)
        channel, url = f"channel-{place}", _url(place)
    return (
        f'{{"event_type":2,"bid":{{"auction":{FIRST_AUCTION + auction},'
        f'"bidder":{FIRST_PERSON + bidder},"price":{price},"channel":"{channel}","url":"{url}",'
        f'"dateTime":{time_ms(number)},"extra":"{draws.extra(32, BID_BYTES)}"}}}}'
    )
