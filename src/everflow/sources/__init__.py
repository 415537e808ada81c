"""Sources outside Kafka, in splits (note 073): what plans and reads them.

`splits` says what a source is, `pieces` reads a split over several micro-batches; one module per
kind of source.
"""
