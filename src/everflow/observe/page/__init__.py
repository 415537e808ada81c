"""The page of an instance: what it does, in the order of an operator's questions (note 054).

`events`: the last lines that people were told. `history`: looks of the last minutes, and what
follows of two of them. `verdict`: one line, and the time to drain. `view`: all that the page shows,
as plain values; pure. `readers`: sends them to who has the page open. `routes`: its paths. The
page's own files lie beside them: no build step, and nothing from elsewhere. May import layer 0,
starlette and `everflow.observe`. It runs in the driver.
"""
