"""Payments that cannot be booked go to a topic of their own, with the reason and the place they
came from, and can come again.

    everflow broker --port 9092 --topic payments:4 --topic payments-corrected:4 --topic booked:4
    --topic payments-dead:4 everflow run dead_letters:builder --application-id booking
    --bootstrap-servers 127.0.0.1:9092

Payments are read as text, so whatever comes in can be read; `checked` answers instead of raising,
and `split` sends each answer its way. Who mends a dead payment writes it to `payments-corrected`.
(For bytes that a serde cannot decode there is a setting, `errors.dead.letter.queue.topic.name`; it
needs no program.)
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import functions as F

from everflow import StreamsBuilder, serdes

CURRENCIES = {"EUR", "USD"}
TEXT = serdes.string()


def checked(text: str) -> dict[str, Any]:
    """The payment, or why it is none."""
    try:
        payment = json.loads(text)
        amount, currency = float(payment["amount"]), payment["currency"]
    except (ValueError, TypeError, KeyError) as error:
        return {"text": text, "reason": f"{type(error).__name__}: {error}"}
    if amount <= 0:
        return {"text": text, "reason": f"the amount is {amount}"}
    if currency not in CURRENCIES:
        return {"text": text, "reason": f"we do not take {currency}"}
    return {"amount": amount, "currency": currency, "text": text}


builder = StreamsBuilder()
payments = builder.stream("payments", key=TEXT, value=TEXT).merge(
    builder.stream("payments-corrected", key=TEXT, value=TEXT)
)
ways = (
    payments.map_values(
        checked, returns="amount double, currency string, text string, reason string"
    )
    .split()
    .branch(F.col("value.reason").isNull(), name="good")
    .default_branch(name="bad")
)
ways["good"].map_values(amount=F.col("value.amount"), currency=F.col("value.currency")).to("booked")
ways["bad"].map_values(
    reason=F.col("value.reason"),
    text=F.col("value.text"),
    place=F.concat(F.col("topic"), F.lit("-"), F.col("partition"), F.lit("@"), F.col("offset")),
).to("payments-dead")
