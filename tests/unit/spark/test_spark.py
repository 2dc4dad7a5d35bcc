"""``lakeferry.spark`` can be named everywhere, and needs PySpark when it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lakeferry
from lakeferry.errors import InvalidInput


def test_the_module_is_there_without_an_import_of_its_own() -> None:
    code = (
        "import sys, lakeferry; lakeferry.spark.install; "
        "print([name for name in sys.modules if name.startswith(('pyspark', 'py4j', 'pyarrow'))])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


@pytest.mark.parametrize("name", ["install", "uninstall"])
def test_without_pyspark_it_says_how_to_get_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pyspark", "pyspark.sql"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidInput, match="PySpark isn't installed") as missing:
        getattr(lakeferry.spark, name)(object())
    assert missing.value.remedy == "pip install 'lakeferry[spark]'"
