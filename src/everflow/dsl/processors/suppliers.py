"""What makes processors and value transformers: a class, a function that makes one, a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from everflow.dsl.functions import (
    check_parameters,
    function_name,
    refuse_pyspark,
    required_parameters,
)
from everflow.errors import TopologyError
from everflow.operators.processors.context import ProcessorContext
from everflow.operators.processors.processor import (
    FunctionProcessor,
    FunctionTransformer,
    Processor,
    Record,
    ValueTransformer,
)

Supplier = type[Processor] | Callable[[], Processor] | Callable[[Record, ProcessorContext], None]
Transformer = type[ValueTransformer] | Callable[..., Any]


@dataclass(frozen=True)
class FunctionSupplier:
    """Makes the processor that calls ``fn``: a `FunctionProcessor` or a `FunctionTransformer`."""

    made: Callable[[Callable[..., Any]], Processor]
    fn: Callable[..., Any]

    def __call__(self) -> Processor:
        return self.made(self.fn)


@dataclass(frozen=True)
class Form:
    """What an operator takes: ``base``: the class of what is made; ``function``: what calls a plain
    function, and ``parameters``: those that it has (the last one may be left out if ``optional``).
    """

    base: type[Any]
    function: type[FunctionProcessor | FunctionTransformer]
    parameters: tuple[str, ...]
    optional: bool = False

    @property
    def taken(self) -> str:
        """For messages."""
        return (
            f"a {self.base.__name__} class, a function without arguments that makes one, or a "
            f"function of ({', '.join(self.parameters)})"
        )


PROCESSORS = Form(Processor, FunctionProcessor, ("record", "context"))
TRANSFORMERS = Form(ValueTransformer, FunctionTransformer, ("key", "value", "context"), True)


def supplier(
    form: Form, given: object, operator: str, where: str | None
) -> tuple[Callable[[], Processor], type[Processor]]:
    """What makes processors, and their class. TopologyError for what makes none."""
    if isinstance(given, Processor):
        raise TopologyError(
            f"{operator} found a {type(given).__name__}; each task needs a processor of its "
            f"own: pass the class, or a function that makes one, lambda: "
            f"{type(given).__name__}(...)",
            where=where,
        )
    refuse_pyspark(given, operator, where)
    if not callable(given):
        raise TopologyError(f"{operator} takes {form.taken}, found {given!r}", where=where)
    makes = isinstance(given, type) or required_parameters(given) == 0
    if not makes:
        names = form.parameters
        if form.optional and required_parameters(given) != len(names):
            names = names[:-1]
        check_parameters(given, names, operator, where)
        return FunctionSupplier(form.function, given), form.function
    if inspect.isabstract(given):
        missing = ", ".join(sorted(getattr(given, "__abstractmethods__", ())))
        raise TopologyError(
            f"{operator}: {function_name(given)} is no whole {form.base.__name__}, it lacks "
            f"{missing}",
            where=where,
        )
    try:
        made = given()
    except Exception as error:
        raise TopologyError(
            f"{operator}: {function_name(given)}() makes no processor: {error!r}; pass a "
            f"function that does, lambda: {function_name(given)}(...)",
            where=where,
        ) from error
    transforms = isinstance(made, ValueTransformer)
    if not isinstance(made, form.base) or transforms != (form.base is ValueTransformer):
        raise TopologyError(
            f"{operator} takes {form.taken}; {function_name(given)}() gave {made!r}", where=where
        )
    return given, type(made)
