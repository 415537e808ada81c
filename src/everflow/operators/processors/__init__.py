"""The processor API (note 023): what a user's processor receives, and the operator that runs it.

`processor` is what users write, `stores` what it uses; `process` runs it (note 040).
"""
