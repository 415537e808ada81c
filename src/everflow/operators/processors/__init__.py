"""The processor API (note 023): what a user's processor is given, and the operator that runs it.

`processor` is what users write, `stores` what it is given; `process` runs it (note 040).
"""
