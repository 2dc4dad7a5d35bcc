from __future__ import annotations

from lakeferry.cli.exit_codes import exit_code
from lakeferry.errors import Forbidden, Interrupted, InvalidInput


def test_exit_codes() -> None:
    codes = [exit_code(kind("x")) for kind in (Forbidden, InvalidInput, Interrupted)]
    assert codes == [1, 2, 130]
