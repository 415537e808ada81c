"""Carries an application's state and offsets into another application, online (note 067).

Read `plan` first (pure): which old changelog becomes which new one, and how. `programs`: a program
as the migrator needs it. `entries` (pure): the records of a changelog as the new program stores
them, and what a store contains. `copying` writes them in transactions and reads them back,
`holding` is the member by which the old group stands still, `migrator` has the steps and the one
transaction that is the switch. `everflow.cli.migrate` is the command. May import all below it.
"""
