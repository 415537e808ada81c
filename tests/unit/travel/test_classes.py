"""Classes in a process that never imported their program: each is there once, as it is."""

from __future__ import annotations

import pytest

from everflow.travel.parcel import Parcel
from unit.travel.travelling import Program, Worker

ENUMS = """
    import datetime, decimal, enum, pickle
    from dataclasses import dataclass
    made = []
    class Planet(enum.Enum):
        EARTH = (5.976e24, 6.4e6)
        MARS = (6.421e23, 3.4e6)
        def __init__(self, mass, radius):
            made.append(mass)
            self.mass, self.radius = mass, radius
        def weight(self): return self.mass * SCALE[self]
    SCALE = {Planet.EARTH: 1, Planet.MARS: 2}
    class Size(int, enum.Enum):
        def __new__(cls, value, label):
            one = int.__new__(cls, value)
            one._value_, one.label = value, label
            return one
        S = (1, "small")
        L = (2, "large")
    class Named(str, enum.Enum):
        A = "a"
        def __reduce__(self): return getattr, (Named, self.name)
        def __hash__(self): return hash(WORD + self.value)
        def __eq__(self, other): return self is other
        def doubled(self): return NAMED[self] * 2
    WORD = "word"
    NAMED = {Named.A: 4}
    class Perm(enum.Flag):
        R, W, X = enum.auto(), enum.auto(), enum.auto()
        RW = R | W
    class Mask(enum.IntFlag):
        A, B = 1, 2
    class Level(enum.IntEnum):
        LOW = 1
        SMALL = 1
        HIGH = enum.auto()
        @classmethod
        def _missing_(cls, value): return cls.LOW
    class Day(datetime.date, enum.Enum):
        NEW = 2024, 1, 1
    class Cents(decimal.Decimal, enum.Enum):
        ONE = "0.01"
    class Text(enum.Enum):
        def _generate_next_value_(name, start, count, last): return name.lower()
        P = enum.auto()
    @dataclass(frozen=True)
    class Point:
        x: int
    class Where(Point, enum.Enum):
        HERE = 7
    class Op(enum.Enum):
        PLUS = enum.member(lambda a, b: a + b) if hasattr(enum, "member") else 1
    class Outer:
        class Inner(enum.Enum):
            ONE = 1
    BOTH = Perm.R | Perm.X
    ALL = (Planet, Size, Named, Perm, Mask, Level, Day, Cents, Text, Where, Op, Outer.Inner)
    MEMBERS = [one for cls in ALL for one in cls]
    PICKLED = [one for one in MEMBERS if type(one) in (Planet, Size, Perm, Mask, Level, Day, Cents, Text, Where)]
    """  # noqa: E501
ENUM_CASES = {
    "attributes": "Planet.EARTH.mass, Planet.MARS.radius, Planet((6.421e23, 3.4e6)) is Planet.MARS",
    "made by its own __new__": (
        "Size.S.label, Size.L + 1, Size(2).label, Size(1) is Size.S, repr(Size.S)"
    ),
    "a key of a dict that a method uses": "Planet.MARS.weight(), SCALE[Planet.EARTH]",
    "a key with a hash and a reduction of its own": (
        "NAMED[Named.A], Named.A.doubled(), Named.A.upper()"
    ),
    "flags": (
        "Perm.RW is Perm.R | Perm.W, Perm.R in Perm.RW, BOTH is Perm(5), list(Perm), "
        "(~Perm.RW) is Perm.X, Mask(3)"
    ),
    "aliases": (
        "Level.SMALL is Level.LOW, list(Level.__members__), Level(9), Level.HIGH > 1, "
        "Level['SMALL']"
    ),
    "dates and decimals": "Day.NEW.isoformat(), Day(datetime.date(2024, 1, 1)).name, Cents.ONE * 3",
    "values made of names": "Text.P.value, Text('p') is Text.P",
    "a mixin of the program": "Where.HERE.x, isinstance(Where.HERE, Point), Where.HERE.name",
    "identity": (
        "[m is type(m)[m.name] for m in MEMBERS], all(pickle.loads(pickle.dumps(m)) is m "
        "for m in PICKLED)"
    ),
    "names": (
        "[repr(m) for m in MEMBERS if m not in (*Op,)], [len(c) for c in ALL], "
        "Outer.Inner.__qualname__, Planet.__doc__"
    ),
    "what they refuse": (
        "refused(lambda: setattr(Planet, 'EARTH', 1)), refused(lambda: Planet(1)), "
        "refused(lambda: Size('x', 3))"
    ),
}


@pytest.mark.parametrize("case", ENUM_CASES)
def test_enums(program: Program, worker: Worker, case: str) -> None:
    name = f"enums_{list(ENUM_CASES).index(case)}"
    program.write(
        name,
        f"""{ENUMS}
    def refused(attempt):
        try: attempt()
        except (AttributeError, ValueError, TypeError) as error: return type(error).__name__
    def f(): return repr(({ENUM_CASES[case]},))
    def count(): return len(made)
    """,
    )
    module = __import__(name)
    parcel = Parcel.of([module.f, module.count])
    program.write(name, "raise RuntimeError('imported again')")
    assert worker.call(parcel, 0) == module.f()
    assert worker.call(parcel, 1) == len(module.made)


def test_a_registry_has_the_classes_that_others_have(program: Program, worker: Worker) -> None:
    module = program.module(
        "events",
        """
        import abc, weakref
        class Event:
            kinds, weak = {}, weakref.WeakValueDictionary()
            def __init_subclass__(cls, *, weight, **rest):
                super().__init_subclass__(**rest)
                Event.kinds[cls.__name__] = Event.weak[cls.__name__] = cls
                Event.count = getattr(Event, "count", 0) + weight
        class Buy(Event, weight=1): pass
        class Sell(Buy, weight=10): pass
        class Meta(abc.ABCMeta):
            made = []
            def __new__(mcs, name, bases, names, **rest):
                cls = super().__new__(mcs, name, bases, names)
                Meta.made.append(cls)
                cls.number = len(Meta.made)
                return cls
            def __setattr__(cls, name, value): super().__setattr__(name, value * 2 if name == "number" else value)
        class Named:
            def __set_name__(self, owner, name):
                self.owner, self.names = owner, [*getattr(self, "names", []), name]
        class Plain(metaclass=Meta):
            field = Named()
            @abc.abstractmethod
            def go(self): ...
        class Real(Plain):
            def go(self): return super().__init__, __class__.number
        @Plain.register
        class Virtual: pass
        COST = {Buy: 2, Sell: 3, Real: 4}
        def f():
            registered = [COST.get(type(Event.kinds[name](), )) for name in ("Buy", "Sell")] + [COST[Meta.made[1]]]
            once = [Event.weak["Buy"] is Buy, Buy.__subclasses__() == [Sell], Event.__subclasses__() == [Buy]]
            created = Event.count, [c.__name__ for c in Meta.made], Plain.number, Real.number, Real().go()[1]
            fields = Plain.field.owner is Plain, Plain.field.names, Plain.__abstractmethods__, Real.__abstractmethods__
            return repr((registered, once, created, fields, issubclass(Virtual, Plain), isinstance(Real(), Plain)))
        def later():
            class Late(Event, weight=100): pass
            return Event.kinds["Late"] is Late, Event.count
        sell_first = [lambda: Event.kinds["Sell"], Sell, f]
        """,  # noqa: E501
    )
    for number, content in enumerate(
        ([module.f], [module.Buy, module.f], [module.Sell, module.f], [module.Meta, module.f])
    ):
        parcel = Parcel.of([*content, module.later])
        assert worker.call(parcel, len(content) - 1) == module.f(), number
        assert worker.call(parcel, len(content)) == (True, 111)


def test_an_instance_that_is_hashed_is_found_again(program: Program, worker: Worker) -> None:
    module = program.module(
        "hashing",
        """
        SEED = 7
        class Code:
            def __init__(self, text): self.text = text
            def __hash__(self): return hash((SEED, self.text))
            def __eq__(self, other): return type(other) is type(self) and self.text == other.text
            def price(self): return PRICES[self]
        class Own(Code):
            known = frozenset({Code("k")})
        Code.all = {Code("a"), Own("b")}
        PRICES = {Code("a"): 1, Own("b"): 2}
        class Single:
            one = None
            def __new__(cls):
                if cls.one is None: cls.one = super().__new__(cls)
                return cls.one
        SINGLE = Single()
        class Interned(str):
            known = {}
            __slots__ = ("hits", "__weakref__")
            def __new__(cls, text):
                if text not in cls.known:
                    cls.known[text] = super().__new__(cls, text)
                    cls.known[text].hits = 0
                return cls.known[text]
        ONE = Interned("one")
        def f(n):
            found = Code("a").price(), Own("b").price(), Own("b") in Code.all, Code("a") in Code.all, Code("k") in Own.known
            return found, Single() is SINGLE, Interned("one") is ONE, ONE.hits, hasattr(ONE, "__dict__")
        """,  # noqa: E501
    )
    for content in (
        [module.f],
        [module.PRICES, module.f],
        [module.Own, module.f],
        [module.SINGLE, module.ONE, module.f],
    ):
        assert worker.call(Parcel.of(content), len(content) - 1, 0) == (
            (1, 2, True, True, True),
            True,
            True,
            0,
            False,
        )


def test_slots_generics_protocols_and_typed_dicts(program: Program, worker: Worker) -> None:
    module = program.module(
        "typed",
        """
        from __future__ import annotations
        import typing
        from dataclasses import dataclass
        T = typing.TypeVar("T")
        class Slotted:
            __slots__ = ("a", "__hidden")
            def __init__(self, a): self.a, self.__hidden = a, a
            def hidden(self): return self.__hidden
        class Below(Slotted):
            __slots__ = ("b", "__dict__")
        class Tree(typing.Generic[T]):
            def root(self): return Leaf
        class Leaf(Tree["Leaf"]): pass
        class Loud(typing.Protocol):
            def shout(self) -> str: ...
        @typing.runtime_checkable
        class Louder(Loud, typing.Protocol): pass
        class Dog(Loud):
            def shout(self): return "woof"
        class Row(typing.TypedDict, total=False): a: int
        class Wide(Row): b: str
        class Pair(typing.NamedTuple):
            a: int
            b: Pair | None = None
            def total(self): return self.a + (self.b.total() if self.b else 0)
        @dataclass(frozen=True, slots=True)
        class Point:
            x: int
            near: Point | None = None
        ORIGIN = Point(0, Point(1))
        def f():
            one = Below(1); one.b = 2; one.c = 3
            tight = not hasattr(Slotted(1), "__dict__") and Slotted(4).hidden() == 4
            return repr((one.a, one.b, one.c, tight, Tree[int]().root() is Leaf, Leaf.__orig_bases__, Leaf.__mro__,
                Tree.__parameters__, isinstance(Dog(), Louder), Dog().shout(),
                Wide(a=1), Wide.__optional_keys__, Pair(1, Pair(2)).total(), Pair._fields,
                ORIGIN, ORIGIN.near == Point(1), hash(ORIGIN) == hash(Point(0, Point(1))), Point.__slots__))
        """,  # noqa: E501
    )
    for content in (
        [module.f],
        [module.Leaf, module.f],
        [module.Wide, module.Below, module.Louder, module.f],
    ):
        assert worker.call(Parcel.of(content), len(content) - 1) == module.f()


def test_models_of_attrs_and_generic_ones_of_pydantic(program: Program, worker: Worker) -> None:
    pytest.importorskip("attrs")
    pytest.importorskip("pydantic")
    module = program.module(
        "modelled",
        """
        import enum, typing
        import attrs, pydantic
        T = typing.TypeVar("T")
        class Kind(enum.Enum):
            A = "a"
        @attrs.frozen
        class Line:
            n: int = attrs.field(validator=attrs.validators.gt(0))
            kind: Kind = Kind.A
        @attrs.define
        class Order:
            lines: list[Line] = attrs.Factory(list)
        class Box(pydantic.BaseModel, typing.Generic[T]):
            content: T
            kind: Kind = Kind.A
            @pydantic.field_validator("content")
            @classmethod
            def known(cls, value): return value
            @pydantic.computed_field
            @property
            def double(self) -> str: return repr(self.content) * 2
        class Ints(Box[int]):
            @pydantic.model_validator(mode="after")
            def checked(self): return self
        KNOWN = {Line(1): "one"}
        def f(n):
            try: Line(-1)
            except ValueError: refused = True
            read = Ints.model_validate_json('{"content": "5", "kind": "a"}')
            boxes = Ints(content=n).model_dump(), Box[str](content="x").double, read
            return repr((KNOWN[Line(1)], refused, attrs.asdict(Order([Line(2)])), boxes))
        """,
    )
    assert worker.call(Parcel.of([module.f]), 0, 3) == module.f(3)
    assert worker.call(Parcel.of([module.Ints, module.f]), 1, 3) == module.f(3)
