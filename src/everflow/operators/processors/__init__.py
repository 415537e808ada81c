"""The processor API (note 023): what a user's processor is given, and the operator that runs it.

`processor` is what users write, with its context, `stores` what else it is given; `process` runs
it, with those that share its stores (note 040).
"""
