"""What a user sees of an instance's error: what it says, not how it came to be known."""

import traceback

from everflow.errors import FatalError, without_history


def test_an_error_without_history_is_shown_by_itself() -> None:
    try:
        try:
            raise OSError("py4j: the socket is closed")
        except OSError as cause:
            raise FatalError("a record cannot be processed") from cause
    except FatalError as error:
        found = error
    assert "py4j" in "".join(traceback.format_exception(found))
    try:
        raise without_history(found)
    except FatalError as raised:
        shown = "".join(traceback.format_exception(raised))
    assert "py4j" not in shown
    assert shown.count("File ") == 1, "the line that raises it now"
    assert shown.endswith("FatalError: a record cannot be processed\n")
