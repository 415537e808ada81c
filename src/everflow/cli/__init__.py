"""The command ``everflow``. Thin: every command loads, calls one part of the package, and prints."""

from everflow.cli.app import main

__all__ = ["main"]
