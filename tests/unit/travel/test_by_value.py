"""Functions in a process that never imported their program find what the driver has, once."""

from __future__ import annotations

import functools
import sys

import pytest

from everflow.travel.pickled_objects import PickledObjects
from unit.travel.travelling import Program, Worker


def break_file(program: Program, name: str) -> None:
    """From now on an import of the module fails: what works then came by value."""
    program.write(name, "raise RuntimeError('imported again')")


def test_a_function_with_all_of_its_module(program: Program, worker: Worker) -> None:
    module = program.module(
        "alone",
        """
        from __future__ import annotations
        from dataclasses import dataclass, field, replace, MISSING, fields
        import enum, functools
        LIMIT = 3
        class Colour(enum.Enum):
            RED = 1
        class Wrong(ValueError):
            pass
        @dataclass(frozen=True)
        class Box:
            side: int
            tags: list[str] = field(default_factory=list)
            @property
            def area(self) -> int:
                return self.side * self.side
            @staticmethod
            def unit() -> Box:
                return Box(1)
            @classmethod
            def of(cls, side) -> Box:
                return cls(side)
        class Cube(Box):
            @property
            def area(self):
                return super().area * 6
        DEFAULT, ONE = Colour.RED, Box(2)
        def check(n):
            if n > LIMIT:
                raise Wrong(n)
        def factorial(n):
            return 1 if n < 2 else n * factorial(n - 1)
        def f(n, made=ONE):
            try:
                check(n)
            except Wrong:
                return "wrong"
            same = DEFAULT is Colour.RED and isinstance(made, Box) and type(Box.of(1)) is Box and Box.unit() == Box(1)
            defaults = [x.default is MISSING for x in fields(Box)]
            return same, factorial(n), Cube(n).area, replace(ONE, side=5).area, defaults, Colour(1) is DEFAULT
        """,  # noqa: E501
    )
    parcel = PickledObjects.of([module.f])
    break_file(program, "alone")
    assert worker.call(parcel, 0, 3) == (True, 6, 54, 25, [True, True], True)
    assert worker.call(parcel, 0, 4) == "wrong"


def test_a_helper_module_keeps_its_identity(program: Program, worker: Worker) -> None:
    program.write(
        "shapes",
        """
        import enum
        class Kind(enum.Enum):
            A = 1
        class Box: pass
        seen = []
        def make(): return Box()
        def note(x): seen.append(x); return len(seen)
        def lock():
            import threading
            return LOCK
        import threading
        LOCK = threading.Lock()    # nobody who travels uses it
        """,
    )
    module = program.module(
        "uses_shapes",
        """
        import pickle
        import shapes
        import shapes as others
        from shapes import make, note, Kind
        FIRST = Kind.A
        def f(x):
            import shapes as again
            note(x)
            fine = isinstance(make(), shapes.Box) and shapes.Kind.A is FIRST and again.Box is others.Box
            return fine, type(pickle.loads(pickle.dumps(make()))) is shapes.Box, shapes.note(x), shapes.seen
        """,  # noqa: E501
    )
    parcel = PickledObjects.of([module.f])
    break_file(program, "shapes")
    break_file(program, "uses_shapes")
    assert worker.call(parcel, 0, 1) == (True, True, 2, [1, 1])
    assert worker.call(parcel, 0, 2) == (True, True, 4, [1, 1, 2, 2])


def test_a_package_with_relative_imports(program: Program, worker: Worker) -> None:
    program.write("shop.__init__", "from .prices import price\n")
    program.write(
        "shop.prices",
        (
            "from . import taxes\nimport shop.names\ndef price(n): return taxes.RATE * n, "
            "shop.names.NAME\n"
        ),
    )
    program.write("shop.taxes", "RATE = 2\n")
    program.write("shop.names", "NAME = 'shop'\n")
    program.write("shop.late", "LATE = 'late'\n")
    module = program.module(
        "shop.main",
        """
        from . import price
        import shop.prices
        def f(n):
            from .taxes import RATE
            from .late import LATE
            return price(n) == shop.prices.price(n), price(n), RATE, LATE
        """,
    )
    parcel = PickledObjects.of([module.f])
    for name in ("shop.__init__", "shop.prices", "shop.taxes", "shop.names", "shop.main"):
        break_file(program, name)
    assert worker.call(parcel, 0, 5) == (True, (10, "shop"), 2, "late")


def test_two_functions_share_variables_and_closures(program: Program, worker: Worker) -> None:
    module = program.module(
        "sharing",
        """
        import functools
        total, cache = 0, {}
        def add(n):
            global total
            total += n
            cache[n] = True
            return total
        def read():
            return total, sorted(cache)
        def pair():
            count = 0
            def up():
                nonlocal count
                count += 1
                return count
            def now():
                return count
            return up, now
        up, now = pair()
        @functools.cache
        def fib(n):
            return n if n < 2 else fib(n - 1) + fib(n - 2)
        def cached(n):
            return fib(n), fib.cache_info().currsize
        """,
    )
    module.fib(5)
    parcel = PickledObjects.of([module.add, module.read, module.up, module.now, module.cached])
    break_file(program, "sharing")
    assert [worker.call(parcel, 0, 1), worker.call(parcel, 0, 2)] == [1, 3]
    assert worker.call(parcel, 1) == (3, [1, 2])
    assert [worker.call(parcel, 2), worker.call(parcel, 2), worker.call(parcel, 3)] == [1, 2, 2]
    assert worker.call(parcel, 4, 30) == (832040, 31)


KINDS = """
import functools, logging, re, threading, typing
from contextlib import contextmanager
T = typing.TypeVar("T")
Cents = typing.NewType("Cents", int)
class Point(typing.NamedTuple):
    x: int
    y: str = "y"
class Meta(type):
    def __new__(mcs, name, bases, names): return super().__new__(mcs, name, bases, names | {"tag": name.lower()})
class Tagged(metaclass=Meta): pass
class Outer:
    class Inner:
        def tag(self): return Outer.Inner.__qualname__
def made(x):
    return Point(Cents(x)), Tagged.tag, Outer.Inner().tag()
log = logging.getLogger(__name__)
WORD = re.compile("[a-z]+")
LOCAL = threading.local()
class Add(typing.Generic[T]):
    __slots__ = ("n",)
    def __init__(self, n): self.n = n
    def __call__(self, x): return self.n + x
    def bound(self, x): return self(x) * 2
    @functools.cached_property
    def nothing(self): return 1
def doubled(fn):
    @functools.wraps(fn)
    def inner(*args): return 2 * fn(*args)
    return inner
@doubled
def plain(x, add=lambda y: y + 1): return add(x)
@functools.singledispatch
def which(x): return "object"
@which.register
def _(x: int): return "int"
@contextmanager
def opened(x):
    yield x
def many(x):
    LOCAL.x = x
    for i in range(x): yield i
def listed(x):
    log.debug("seen")
    with opened(x) as found: return list(many(found)), WORD.match("ab1").group(), LOCAL.x
everything = [Add(1), Add(1).bound, functools.partial(pow, 2), functools.partial(plain, 5), plain, which, listed,
              lambda x, n=Add(7): n(x), plain.__wrapped__, made]
"""  # noqa: E501


def test_callables_of_every_kind(program: Program, worker: Worker) -> None:
    module = program.module("kinds", KINDS)
    which = module.which
    assert which(1) == "int"
    parcel = PickledObjects.of(module.everything)
    break_file(program, "kinds")
    assert [worker.call(parcel, i, 4) for i in (0, 1, 2, 4, 5, 6, 7, 8)] == [
        5,
        10,
        16,
        10,
        "int",
        ([0, 1, 2, 3], "ab", 4),
        11,
        5,
    ]
    assert worker.call(parcel, 3) == 12
    assert worker.call(parcel, 9, 4)[1:] == ("tagged", "Outer.Inner")
    assert tuple(worker.call(parcel, 9, 4)[0]) == (4, "y")


def test_a_model_of_pydantic(program: Program, worker: Worker) -> None:
    pytest.importorskip("pydantic")
    module = program.module(
        "models",
        """
        import pydantic
        class Line(pydantic.BaseModel):
            n: int = pydantic.Field(gt=0)
        class Order(pydantic.BaseModel):
            lines: list[Line] = []
        FIRST = Line(n=1)
        def f(n):
            try:
                return Order(lines=[FIRST, {"n": n}]).model_dump(), isinstance(FIRST, Line)
            except pydantic.ValidationError:
                return "not valid"
        """,
    )
    parcel = PickledObjects.of([module.f])
    break_file(program, "models")
    assert worker.call(parcel, 0, 2) == ({"lines": [{"n": 1}, {"n": 2}]}, True)
    assert worker.call(parcel, 0, -2) == "not valid"


def test_what_a_worker_cannot_know_is_imported(program: Program, worker: Worker) -> None:
    module = program.module(
        "dynamic",
        """
        from everflow import KafkaStreams, StreamsBuilder, agg, serdes
        from pyspark.sql import SparkSession, functions as F
        from pyspark.sql.types import StringType
        builder = "the driver's"
        if __name__ == "never":
            pass
        HIDDEN = 41
        def f(name): return getattr(__import__("dynamic"), name) + 1
        """,
    )
    parcel = PickledObjects.of([module.f])
    program.write(
        "dynamic",
        """
        from everflow import KafkaStreams, StreamsBuilder, agg, serdes
        from pyspark.sql import SparkSession, functions as F
        from pyspark.sql.types import StringType
        builder = StreamsBuilder()
        stream = builder.stream("a", value=serdes.json("x double, s string"))
        big = (F.col("value.x").cast("int") + 1 > 2) & F.expr("x is null") | F.lit(3).isin(1, 2)
        text = F.when(big, F.concat_ws("-", F.struct("a", F.lit(1)), F.col("b").cast(StringType()))).otherwise("c").alias("d")
        items = F.transform("value.xs", lambda x: x + 1)
        udf = F.udf(lambda x: x, "int")(F.col("a"))
        for branch in stream.split().branch(big).branches().values():
            branch.to("b")
        small, large = stream.filter(big), stream.filter_not(~big)
        small.merge(large).group_by(F.col("value.s")).aggregate(n=agg.sum("value.x"), store="s").to_stream().to("c")
        spark = SparkSession.builder.appName("x").getOrCreate()
        frame = spark.createDataFrame([(1,)], "a int").filter(F.col("a") > 1)
        streams = KafkaStreams(builder.build(), application_id="a", bootstrap_servers="b")
        HIDDEN = 41
        """,  # noqa: E501
    )
    assert worker.call(parcel, 0, "HIDDEN") == 42


def test_a_module_that_starts_when_imported_is_refused(program: Program, worker: Worker) -> None:
    module = program.module(
        "unguarded", "HIDDEN = 1\ndef f(name): return getattr(__import__('unguarded'), name)\n"
    )
    parcel = PickledObjects.of([module.f])
    program.write(
        "unguarded",
        (
            "from everflow import KafkaStreams\nKafkaStreams(None, "
            "application_id='a').run()\nHIDDEN = "
            "1\n"
        ),
    )
    with pytest.raises(RuntimeError, match=r"a KafkaStreams at once; .*`if"):
        worker.call(parcel, 0, "HIDDEN")


def test_a_worker_keeps_two_programs_apart(program: Program, worker: Worker) -> None:
    module = program.module(
        "twice",
        """
        VERSION, seen = 1, []
        def f(x):
            import twice
            seen.append(x)
            return twice.VERSION, seen
        """,
    )
    first = PickledObjects.of([module.f])
    vars(module)["VERSION"] = 2
    second = PickledObjects.of([module.f])
    assert worker.call(first, 0, "a") == (1, ["a"])
    assert worker.call(second, 0, "b") == (2, ["b"])
    assert worker.call(first, 0, "c") == (1, ["a", "c"])
    again = PickledObjects.of([module.f])
    assert worker.call(again, 0, "d") == (2, ["d"]), "begins with its variables"


def test_a_module_named_as_a_library_is_its_own_file(program: Program, worker: Worker) -> None:
    program.write("later.tabnanny", "HIDDEN = 1\n")
    sys.path.insert(0, str(program.folder / "later"))
    try:
        module = program.module(
            "shades",
            "import tabnanny\ndef f(name): return getattr(tabnanny, name), tabnanny.__name__\n",
        )
    finally:
        sys.path.remove(str(program.folder / "later"))
    assert worker.call(PickledObjects.of([module.f]), 0, "HIDDEN") == (1, "tabnanny")


def test_folders_without_init_to_import_from(program: Program, worker: Worker) -> None:
    program.write("rules.eu.vat", "RATE = 2\n")
    module = program.module(
        "taxing",
        (
            "def f(x):\n    from rules.eu.vat import RATE\n    import rules.eu.vat as vat\n    "
            "return "
            "x * vat.RATE\n"
        ),
    )
    first, second = PickledObjects.of([module.f]), PickledObjects.of([module.f])
    assert [worker.call(parcel, 0, 3) for parcel in (first, second, first)] == [6, 6, 6]


def test_what_a_worker_does_not_have_is_told_in_words(program: Program, worker: Worker) -> None:
    from types import ModuleType

    gone = ModuleType("gone")
    exec("class Thing: pass", vars(gone))
    module = program.module("needs_gone", "thing = None\ndef f(): return thing\n")
    sys.modules["statistics_gone"] = gone
    try:
        vars(module)["thing"] = functools.partial(print, gone)
        gone.__name__ = "statistics_gone"
        gone.__file__ = "/nowhere/site-packages/statistics_gone.py"
        parcel = PickledObjects.of([module.f])
    finally:
        del sys.modules["statistics_gone"]
    with pytest.raises(RuntimeError, match=r"ModuleNotFoundError.*named 'statistics_gone'"):
        worker.call(parcel, 0)


def test_a_copy_in_the_same_process_leaves_the_program_as_it_is(program: Program) -> None:
    module = program.module(
        "copied",
        """
        seen = []
        class Box:
            def area(self): return 1
        def f(x):
            seen.append(x)
            return seen, Box
        """,
    )
    area = module.Box.area
    (f,) = PickledObjects.of([module.f]).copy()
    seen, box = f(1)
    assert (seen, module.seen) == ([1], [])
    assert box is not module.Box
    assert module.Box.area is area
    assert __import__("copied") is module


# Classes in a process that never imported their program.


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
    parcel = PickledObjects.of([module.f, module.count])
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
        parcel = PickledObjects.of([*content, module.later])
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
        assert worker.call(PickledObjects.of(content), len(content) - 1, 0) == (
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
        assert worker.call(PickledObjects.of(content), len(content) - 1) == module.f()


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
    assert worker.call(PickledObjects.of([module.f]), 0, 3) == module.f(3)
    assert worker.call(PickledObjects.of([module.Ints, module.f]), 1, 3) == module.f(3)
