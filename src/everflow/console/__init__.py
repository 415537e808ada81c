"""The terminal: `status`, the line that is written over and over. Used by commands and the demo.
May import all below the commands; not cli, demo or testing.
"""
