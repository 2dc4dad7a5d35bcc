from __future__ import annotations

import pickle
import traceback

from lakeferry.errors import NotATable


def test_a_traceback_shows_the_remedy_of_now() -> None:
    error = NotATable("no table", cause="a file", remedy="name a folder", location="x")
    error.add_note("by somebody else")
    assert traceback.format_exception_only(error)[1:] == [
        "remedy: name a folder\n",
        "by somebody else\n",
    ]
    error.remedy = "name the table"
    assert error.__notes__ == ["by somebody else", "remedy: name the table"]
    error.remedy = None
    assert error.__notes__ == ["by somebody else"]


def test_an_error_survives_the_way_between_processes() -> None:
    error = NotATable("no table", cause="a file", remedy="name a folder", location="x")
    again = pickle.loads(pickle.dumps(error))
    assert again.as_document() == error.as_document()
    assert again.__notes__ == ["remedy: name a folder"]
