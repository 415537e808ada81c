"""The terminal output of commands and the demo.

`terminal`: banner, progress and errors as text. `status`: the line that is written over and over.
`watch`: how far behind an instance is.
May import all below the commands; not cli, demo or testing.
"""
