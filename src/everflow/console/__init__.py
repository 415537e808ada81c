"""The terminal output of commands and the demo.

`status`: the line that is written over and over. `observed`: what instances say of themselves.
May import all below the commands; not cli, demo or testing.
"""
